"""Trains with DistributedDataParallel: torchrun --nproc-per-node 2 examples/train_ddp.py --epochs 3 --batch-size 64"""

import os
import time

import torch
import torch.distributed as dist
from data_and_models import build_model, load_datasets, parse_options
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler


def train(model, loader, optimizer, device):
    """Train one epoch and return the mean loss over all processes."""
    model.train()
    total_and_samples = torch.zeros(2, device=device)
    for images, labels in loader:
        images, labels = images.to(device), labels.to(device)
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()
        total_and_samples += torch.tensor([loss.item() * len(labels), len(labels)], device=device)
    dist.all_reduce(total_and_samples)
    total, samples = total_and_samples.tolist()
    return total / samples


def test(model, loader, device):
    """The fraction of the samples of all processes that the model classifies correctly."""
    model.eval()
    correct_and_samples = torch.zeros(2, device=device)
    with torch.no_grad():
        for images, labels in loader:
            predicted = model(images.to(device)).argmax(dim=1).cpu()
            correct_and_samples += torch.tensor([(predicted == labels).sum(), len(labels)], device=device)
    dist.all_reduce(correct_and_samples)
    correct, samples = correct_and_samples.tolist()
    return correct / samples


def main():
    options = parse_options(__doc__)
    torch.manual_seed(42)
    on_gpu = torch.cuda.is_available()
    if on_gpu:
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl" if on_gpu else "gloo", init_method="env://")
    device = torch.device("cuda" if on_gpu else "cpu")

    training_set, testing_set = load_datasets(options)
    training_sampler = DistributedSampler(training_set)
    testing_sampler = DistributedSampler(testing_set, shuffle=False)
    workers = options.workers
    training_loader = DataLoader(training_set, options.batch_size, sampler=training_sampler, num_workers=workers)
    testing_loader = DataLoader(testing_set, options.batch_size, sampler=testing_sampler, num_workers=workers)
    model = DistributedDataParallel(build_model(options.model).to(device))
    optimizer = torch.optim.SGD(model.parameters(), lr=options.learning_rate, momentum=0.9)

    for epoch in range(1, options.epochs + 1):
        training_sampler.set_epoch(epoch)
        start = time.perf_counter()
        loss = train(model, training_loader, optimizer, device)
        trained = time.perf_counter()
        accuracy = test(model, testing_loader, device)
        tested = time.perf_counter()
        if dist.get_rank() == 0:
            print(
                f"Epoch {epoch}: training {trained - start:.2f}(s) - testing {tested - trained:.2f}(s) "
                f"- loss {loss:.3f} - accuracy {accuracy:.1%}",
                flush=True,
            )
    if options.save and dist.get_rank() == 0:
        torch.save(model.module.state_dict(), options.save)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
