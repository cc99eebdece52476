"""Trains with Horovod: horovodrun -np 2 python examples/train_horovod.py --epochs 3 --batch-size 64"""

import time

import horovod.torch as hvd
import torch
from data_and_models import build_model, load_datasets, parse_options
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler


def train(model, loader, optimizer, device):
    """Train one epoch and return the mean loss over all processes."""
    model.train()
    total_and_samples = torch.zeros(2)
    for images, labels in loader:
        images, labels = images.to(device), labels.to(device)
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()
        total_and_samples += torch.tensor([loss.item() * len(labels), len(labels)])
    total, samples = hvd.allreduce(total_and_samples, op=hvd.Sum).tolist()
    return total / samples


def test(model, loader, device):
    """The fraction of the samples of all processes that the model classifies correctly."""
    model.eval()
    correct_and_samples = torch.zeros(2)
    with torch.no_grad():
        for images, labels in loader:
            predicted = model(images.to(device)).argmax(dim=1).cpu()
            correct_and_samples += torch.tensor([(predicted == labels).sum(), len(labels)])
    correct, samples = hvd.allreduce(correct_and_samples, op=hvd.Sum).tolist()
    return correct / samples


def main():
    options = parse_options(__doc__)
    torch.manual_seed(42)
    hvd.init()
    on_gpu = torch.cuda.is_available()
    if on_gpu:
        torch.cuda.set_device(hvd.local_rank())
    device = torch.device("cuda" if on_gpu else "cpu")

    training_set, testing_set = load_datasets(options)
    ranks = {"num_replicas": hvd.size(), "rank": hvd.rank()}
    training_sampler = DistributedSampler(training_set, **ranks)
    testing_sampler = DistributedSampler(testing_set, shuffle=False, **ranks)
    workers = options.workers
    training_loader = DataLoader(training_set, options.batch_size, sampler=training_sampler, num_workers=workers)
    testing_loader = DataLoader(testing_set, options.batch_size, sampler=testing_sampler, num_workers=workers)
    model = build_model(options.model).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=options.learning_rate, momentum=0.9)
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)

    for epoch in range(1, options.epochs + 1):
        training_sampler.set_epoch(epoch)
        start = time.perf_counter()
        loss = train(model, training_loader, optimizer, device)
        trained = time.perf_counter()
        accuracy = test(model, testing_loader, device)
        tested = time.perf_counter()
        if hvd.rank() == 0:
            print(
                f"Epoch {epoch}: training {trained - start:.2f}(s) - testing {tested - trained:.2f}(s) "
                f"- loss {loss:.3f} - accuracy {accuracy:.1%}",
                flush=True,
            )
    if options.save and hvd.rank() == 0:
        torch.save(model.state_dict(), options.save)


if __name__ == "__main__":
    main()
