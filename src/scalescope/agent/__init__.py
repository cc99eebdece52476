"""The agent inside every rank: it watches an unchanged training script and writes down what happened when.

It lives in interpreters that need not have scalescope: standard library and torch only, Python 3.9 and later.
`hook/sitecustomize.py` loads it under the name `scalescope_agent`.
"""
