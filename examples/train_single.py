"""Trains on one device: python examples/train_single.py --epochs 3 --batch-size 64"""

import time

import torch
from data_and_models import build_model, load_datasets, parse_options
from torch import nn
from torch.utils.data import DataLoader


def train(model, loader, optimizer, device):
    """Train one epoch and return the mean loss."""
    model.train()
    total, samples = 0.0, 0
    for images, labels in loader:
        images, labels = images.to(device), labels.to(device)
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()
        total += loss.item() * len(labels)
        samples += len(labels)
    return total / samples


def test(model, loader, device):
    """The fraction of the samples that the model classifies correctly."""
    model.eval()
    correct, samples = 0, 0
    with torch.no_grad():
        for images, labels in loader:
            predicted = model(images.to(device)).argmax(dim=1).cpu()
            correct += (predicted == labels).sum().item()
            samples += len(labels)
    return correct / samples


def main():
    options = parse_options(__doc__)
    torch.manual_seed(42)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    training_set, testing_set = load_datasets(options)
    training_loader = DataLoader(training_set, options.batch_size, shuffle=True, num_workers=options.workers)
    testing_loader = DataLoader(testing_set, options.batch_size, num_workers=options.workers)
    model = build_model(options.model).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=options.learning_rate, momentum=0.9)

    for epoch in range(1, options.epochs + 1):
        start = time.perf_counter()
        loss = train(model, training_loader, optimizer, device)
        trained = time.perf_counter()
        accuracy = test(model, testing_loader, device)
        tested = time.perf_counter()
        print(
            f"Epoch {epoch}: training {trained - start:.2f}(s) - testing {tested - trained:.2f}(s) "
            f"- loss {loss:.3f} - accuracy {accuracy:.1%}",
            flush=True,
        )
    if options.save:
        torch.save(model.state_dict(), options.save)


if __name__ == "__main__":
    main()
