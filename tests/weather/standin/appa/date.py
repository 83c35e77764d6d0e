import torch


def encode(date):
    """The season and the hour, with shape (B, T, 4), of dates with shape (B, T, 4)."""
    _, month, day, hour = date.unbind(dim=-1)
    season = 2 * torch.pi * ((month - 1) * 30.5 + day) / 366
    clock = 2 * torch.pi * hour / 24
    return torch.stack((season.sin(), season.cos(), clock.sin(), clock.cos()), dim=-1)
