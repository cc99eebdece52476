"""A GAN: two models, each wrapped in DistributedDataParallel, and two optimizers that take turns."""

import torch
import torch.distributed as dist
from common import BATCH, WIDTH, batches, save
from torch import nn
from torch.nn.functional import binary_cross_entropy_with_logits
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
torch.manual_seed(0)
generator = nn.Sequential(nn.Linear(64, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH))
discriminator = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.LeakyReLU(0.2), nn.Linear(WIDTH, 1))
generator, discriminator = DistributedDataParallel(generator), DistributedDataParallel(discriminator)
optimizer_g = torch.optim.Adam(generator.parameters(), lr=2e-4, betas=(0.5, 0.999))
optimizer_d = torch.optim.Adam(discriminator.parameters(), lr=2e-4, betas=(0.5, 0.999))
real_label, fake_label = torch.ones(BATCH, 1), torch.zeros(BATCH, 1)
torch.manual_seed(dist.get_rank())
for real, _ in batches():
    optimizer_d.zero_grad()
    binary_cross_entropy_with_logits(discriminator(real), real_label).backward()
    fake = generator(torch.randn(BATCH, 64))
    binary_cross_entropy_with_logits(discriminator(fake.detach()), fake_label).backward()
    optimizer_d.step()

    optimizer_g.zero_grad()
    binary_cross_entropy_with_logits(discriminator(fake), real_label).backward()
    optimizer_g.step()
save(nn.ModuleList([generator, discriminator]))
dist.destroy_process_group()
