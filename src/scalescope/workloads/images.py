"""What image models decide by the size of their images."""

# ImageNet stems divide the size by 32: below 64 pixels hardly anything would be left of an image.
LARGE_IMAGE = 64


def is_large(image_size: int) -> bool:
    """Whether images of this many pixels a side get the ImageNet stem and head instead of the CIFAR ones."""
    return image_size >= LARGE_IMAGE


def classes_for(image_size: int, classes: int | None) -> int:
    """`classes` where they are given, otherwise 1000 (ImageNet) for large images and 10 (CIFAR) for small ones."""
    if classes is not None:
        return classes
    return 1000 if is_large(image_size) else 10
