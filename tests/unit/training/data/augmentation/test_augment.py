"""Augmentation: each operation against a naive reference, and each sample independent of its batch."""

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from preflight.contract.spec import Augmentation
from training.data.augmentation.augment import (
    AFFINE_STREAM,
    BLUR_STREAM,
    DOTS_STREAM,
    MORPHOLOGY_STREAM,
    NOISE_STREAM,
    augment,
)
from training.data.augmentation.image_ops import affine, dilate, draw_dots, erode, gaussian_blur

Plane = npt.NDArray[np.float64]

EVERYTHING = Augmentation(
    rotate_degrees=15.0, translate=0.1, scale=0.1, erode_probability=0.3, dilate_probability=0.3, blur_sigma=1.0,
    dots_probability=0.4, noise_probability=0.05,
)  # fmt: skip
ALONE = {
    "affine": Augmentation(rotate_degrees=15.0, translate=0.1),
    "morphology": Augmentation(erode_probability=0.3, dilate_probability=0.3),
    "blur": Augmentation(blur_sigma=2.0),
    "dots": Augmentation(dots_probability=0.4),
    "noise": Augmentation(noise_probability=0.1),
    "size": Augmentation(scale=0.2),
    "resized crop": Augmentation(random_resized_crop_scale=0.3),
    "padded crop": Augmentation(random_crop_padding=4),
    "flips": Augmentation(random_horizontal_flip=0.5, random_vertical_flip=0.3),
    "light": Augmentation(brightness=0.4, contrast=0.4),
    "everything": EVERYTHING,
}


def random_images(count: int, channels: int = 1, height: int = 28, width: int = 28) -> Tensor:
    """Half background, half values in 0..1."""
    generator = torch.Generator().manual_seed(0)
    values = torch.rand(count, channels, height, width, generator=generator)
    return values.mul(2).sub(1).clamp(min=0)


def augmented(images: Tensor, augmentation: Augmentation, epoch: int = 0) -> Tensor:
    return augment(images, augmentation, seed=1, epoch=epoch, samples=torch.arange(len(images)))


def planes(images: Tensor) -> list[Plane]:
    return [plane.double().numpy() for plane in images.flatten(0, 1)]


def window_reference(plane: Plane, kernel: int, extreme: Callable[[Plane], float]) -> Plane:
    """Extreme of each pixel's square window, cut at the image's border."""
    radius = kernel // 2
    result = np.empty_like(plane)
    for row, column in np.ndindex(plane.shape):
        window = plane[max(row - radius, 0) : row + radius + 1, max(column - radius, 0) : column + radius + 1]
        result[row, column] = extreme(window)
    return result


def blur_reference(plane: Plane, sigma: float, radius: int) -> Plane:
    """Sum over a square of Gaussian weights, zero outside the image."""
    offsets = range(-radius, radius + 1)
    norm = sum(math.exp(-(offset**2) / (2 * sigma**2)) for offset in offsets) ** 2
    padded = np.pad(plane, radius)
    height, width = plane.shape
    result = np.zeros_like(plane)
    for down in offsets:
        for right in offsets:
            weight = math.exp(-(down**2 + right**2) / (2 * sigma**2)) / norm
            shifted = padded[radius + down :, radius + right :][:height, :width]
            result += weight * shifted
    return result


def affine_reference(plane: Plane, degrees: float, right: float, down: float, size: float) -> Plane:
    """For each pixel: where it comes from, and the four pixels around that place, weighted."""
    height, width = plane.shape
    cos, sin = math.cos(math.radians(degrees)), math.sin(math.radians(degrees))
    result = np.zeros_like(plane)
    for row, column in np.ndindex(plane.shape):
        x, y = column - (width - 1) / 2 - right, row - (height - 1) / 2 - down
        # Counterclockwise with y pointing down, undone.
        source_column = (cos * x - sin * y) / size + (width - 1) / 2
        source_row = (sin * x + cos * y) / size + (height - 1) / 2
        for near_row in (math.floor(source_row), math.floor(source_row) + 1):
            for near_column in (math.floor(source_column), math.floor(source_column) + 1):
                if 0 <= near_row < height and 0 <= near_column < width:
                    share = (1 - abs(source_row - near_row)) * (1 - abs(source_column - near_column))
                    result[row, column] += share * plane[near_row, near_column]
    return result


def assert_planes_close(images: Tensor, references: list[Plane]) -> None:
    for plane, reference in zip(planes(images), references, strict=True):
        np.testing.assert_allclose(plane, reference, atol=1e-5)


def test_off_returns_the_input() -> None:
    """Without any active knob the very same tensor comes back."""
    images = random_images(3)
    assert augmented(images, Augmentation()) is images


@pytest.mark.parametrize("height", [8, 9])
@pytest.mark.parametrize("turns", [1, 2, 3])
def test_quarter_turns_are_those_of_rot90(turns: int, height: int) -> None:
    """Rotation by a multiple of 90 degrees moves whole pixels counterclockwise, as torch.rot90 does."""
    images = random_images(2, channels=2, height=height, width=height)
    rotated = affine(images, torch.full((2,), 90.0 * turns), torch.zeros(2, 2), torch.ones(2))
    torch.testing.assert_close(rotated, torch.rot90(images, turns, (2, 3)), atol=1e-5, rtol=0)


def test_affine_matches_a_loop_over_pixels() -> None:
    """Rotation and size, then shift, bilinear, also where the image is not square."""
    images = random_images(3, height=9, width=14)
    degrees, shifts, sizes = [30.0, -75.5, 160.0], [[0.0, 0.0], [1.25, -2.5], [-0.5, 3.0]], [1.0, 1.5, 0.7]
    references = [
        affine_reference(plane, angle, right, down, size)
        for plane, angle, (right, down), size in zip(planes(images), degrees, shifts, sizes, strict=True)
    ]
    changed = affine(images, torch.tensor(degrees), torch.tensor(shifts), torch.tensor(sizes))
    assert_planes_close(changed, references)


def test_shifts_reach_the_knob_and_no_further() -> None:
    """Shifts fill +-translate times the side, along each axis its own side."""
    images = torch.zeros(2000, 1, 21, 41)
    images[:, :, 10, 20] = 1.0
    moved = augmented(images, Augmentation(translate=0.2))[:, 0]
    down = (moved.sum(2) * (torch.arange(21) - 10)).sum(1)
    right = (moved.sum(1) * (torch.arange(41) - 20)).sum(1)
    for offsets, limit in ((down, 4.2), (right, 8.2)):
        assert limit * 0.99 < float(offsets.max()) < limit + 1e-3
        assert -limit - 1e-3 < float(offsets.min()) < -limit * 0.99
        assert abs(float(offsets.mean())) < 4 * limit / math.sqrt(3 * 2000)


def test_rotations_reach_the_knob_and_no_further() -> None:
    """Angles fill +-rotate_degrees."""
    images = torch.zeros(2000, 1, 41, 41)
    images[:, :, 20, 36] = 1.0
    turned = augmented(images, Augmentation(rotate_degrees=30.0))[:, 0]
    down = (turned.sum(2) * (torch.arange(41) - 20)).sum(1) / turned.sum((1, 2))
    right = (turned.sum(1) * (torch.arange(41) - 20)).sum(1) / turned.sum((1, 2))
    degrees = torch.rad2deg(torch.atan2(-down, right))
    assert 29 < float(degrees.max()) < 31
    assert -31 < float(degrees.min()) < -29
    assert abs(float(degrees.mean())) < 4 * 30 / math.sqrt(3 * 2000)


def test_sizes_reach_the_knob_and_no_further() -> None:
    """A square of 20 pixels becomes one of 14 to 26, with both sides alike."""
    images = torch.zeros(2000, 1, 40, 40)
    images[:, :, 10:30, 10:30] = 1.0
    resized = augmented(images, Augmentation(scale=0.3))[:, 0]
    height, width = resized.amax(2).sum(1), resized.amax(1).sum(1)
    assert torch.allclose(height, width, atol=1e-3)
    assert 25.5 < float(height.max()) < 26.5
    assert 13.5 < float(height.min()) < 14.5
    assert abs(float(height.mean()) - 20) < 4 * 6 / math.sqrt(3 * 2000) + 0.1


@pytest.mark.parametrize("kernel", [3, 5, 7])
def test_morphology_matches_a_loop_over_windows(kernel: int) -> None:
    """Dilation is the largest and erosion the smallest value of the window within the image."""
    images = random_images(2, channels=2, height=9, width=12)
    largest = [window_reference(plane, kernel, np.max) for plane in planes(images)]
    smallest = [window_reference(plane, kernel, np.min) for plane in planes(images)]
    assert_planes_close(dilate(images, kernel), largest)
    assert_planes_close(erode(images, kernel), smallest)


def test_each_image_is_eroded_or_dilated_or_neither() -> None:
    """The shares are those asked for, and no image is both eroded and dilated."""
    images = random_images(4000, height=8, width=8)
    changed = augmented(images, Augmentation(erode_probability=0.2, dilate_probability=0.5))
    outcomes = [(changed == expected).flatten(1).all(1) for expected in (erode(images, 3), dilate(images, 3), images)]
    assert bool((torch.stack(outcomes).sum(0) == 1).all())
    for outcome, share in zip(outcomes, (0.2, 0.5, 0.3), strict=True):
        assert abs(float(outcome.float().mean()) - share) < 4 * math.sqrt(share * (1 - share) / 4000)


@pytest.mark.parametrize("sigma", [0.4, 1.0, 3.0])
def test_blur_matches_a_sum_over_the_kernel(sigma: float) -> None:
    """Each sample is blurred with its own Gaussian; a radius beyond the image's side is no problem."""
    radius = math.ceil(3 * sigma)
    images = random_images(3, height=7, width=11)
    sigmas = [sigma, sigma / 2, sigma / 3]
    references = [blur_reference(plane, own, radius) for plane, own in zip(planes(images), sigmas, strict=True)]
    assert_planes_close(gaussian_blur(images, torch.tensor(sigmas), radius), references)


@pytest.mark.parametrize("sigma", [0.0, 1e-30, 1e-4])
def test_blur_of_no_width_changes_nothing(sigma: float) -> None:
    """A standard deviation of 0, or next to it, gives the image itself, to the bit."""
    images = random_images(2)
    assert torch.equal(gaussian_blur(images, torch.full((2,), sigma), 3), images)


@pytest.mark.parametrize("probability", [5e-324, 1e-12])
def test_noise_that_never_comes_changes_nothing(probability: float) -> None:
    """However far the next noisy pixel would be."""
    images = random_images(50)
    assert torch.equal(augmented(images, Augmentation(noise_probability=probability)), images)


def test_dots_are_white_squares_of_the_given_size() -> None:
    """Exactly the pixels of the squares become 1; all others stay."""
    images = random_images(3, channels=3)
    samples, tops, lefts = torch.tensor([0, 2]), torch.tensor([[0, 5], [26, 26]]), torch.tensor([[0, 6], [26, 0]])
    expected = images.clone()
    for sample, image_tops, image_lefts in zip(samples.tolist(), tops.tolist(), lefts.tolist(), strict=True):
        for top, left in zip(image_tops, image_lefts, strict=True):
            expected[sample, :, top : top + 2, left : left + 2] = 1.0
    draw_dots(images, samples, tops, lefts, 2)
    assert torch.equal(images, expected)


def test_dots_fall_on_their_share_of_images_and_everywhere_in_them() -> None:
    """One dot per chosen image, always whole, with each position equally likely."""
    size, side, count = 3, 8, 20_000
    marked = augmented(
        torch.zeros(count, 1, side, side), Augmentation(dots_probability=0.6, dots_count=1, dots_size=size)
    )
    painted = marked.sum((1, 2, 3))
    assert set(painted.tolist()) == {0.0, float(size * size)}
    chosen = marked[painted > 0, 0]
    assert abs(len(chosen) / count - 0.6) < 4 * math.sqrt(0.24 / count)
    corners = chosen.flatten(1).argmax(1)
    positions = (side - size + 1) ** 2
    counts = torch.bincount(corners)
    occupied = counts[counts > 0].double()
    assert len(occupied) == positions
    expected = len(chosen) / positions
    # 35 degrees of freedom: above this once in 10,000.
    assert float(((occupied - expected) ** 2 / expected).sum()) < 74


def test_every_dot_is_drawn() -> None:
    """Nearly `dots_count` squares show on a large image, where they seldom overlap; a small image cuts a dot."""
    marked = augmented(torch.zeros(20, 1, 200, 200), Augmentation(dots_probability=1.0, dots_count=10, dots_size=2))
    painted = marked.sum((1, 2, 3))
    assert float(painted.max()) == 40
    assert float(painted.mean()) > 38
    cut = augmented(torch.zeros(1, 1, 4, 6), Augmentation(dots_probability=1.0, dots_count=1, dots_size=9))
    assert float(cut.sum()) == 16


@pytest.mark.parametrize(("probability", "salt"), [(0.05, 0.5), (0.3, 0.9), (1.0, 0.25), (0.2, 0.0)])
def test_noise_has_its_shares_of_salt_and_pepper(probability: float, salt: float) -> None:
    """Noisy pixels are 1 or 0 in the given shares, the same in all channels; the others stay."""
    images = torch.full((200, 2, 28, 28), 0.5)
    noisy = augmented(images, Augmentation(noise_probability=probability, salt_vs_pepper=salt))
    assert set(noisy.flatten().tolist()) <= {0.0, 0.5, 1.0}
    assert torch.equal(noisy[:, 0], noisy[:, 1])
    for value, share in ((1.0, probability * salt), (0.0, probability * (1 - salt))):
        tolerance = 4 * math.sqrt(share * (1 - share) / noisy[:, 0].numel())
        assert abs(float((noisy[:, 0] == value).float().mean()) - share) <= tolerance


@pytest.mark.parametrize("probability", [0.02, 0.5, 0.9])
def test_noise_falls_on_all_pixels_alike_and_on_each_by_itself(probability: float) -> None:
    """From the first to the last; and whether one is hit tells nothing of the next."""
    noisy = augmented(torch.full((20_000, 1, 4, 6), 0.5), Augmentation(noise_probability=probability)) != 0.5
    hit = noisy.flatten(1).double()
    deviation = math.sqrt(probability * (1 - probability) / len(hit))
    assert float((hit.mean(0) - probability).abs().max()) < 4.5 * deviation
    both = (hit[:, :-1] * hit[:, 1:]).mean(0)
    assert float((both - probability**2).abs().max()) < 4.5 * math.sqrt(
        probability**2 * (1 - probability**2) / len(hit)
    )


@pytest.mark.parametrize("name", ALONE)
def test_a_sample_does_not_depend_on_its_batch(name: str) -> None:
    """Alone, in micro-batches of several sizes, and in another order, each result is the same to the bit."""
    images, samples = random_images(130, channels=2), torch.arange(1000, 1130)

    def run(chosen: Tensor) -> Tensor:
        return augment(images[chosen], ALONE[name], seed=3, epoch=4, samples=samples[chosen])

    everyone = torch.arange(130)
    whole = run(everyone)
    for parts in (130, 19, 2):
        assert torch.equal(torch.cat([run(part) for part in everyone.chunk(parts)]), whole)
    order = torch.randperm(130, generator=torch.Generator().manual_seed(0))
    assert torch.equal(run(order), whole[order])


@pytest.mark.usefixtures("torch_as_it_was")
@pytest.mark.parametrize("name", ALONE)
def test_threads_do_not_change_the_result(name: str) -> None:
    """One thread and two give the same bits."""
    images, results = random_images(300), []
    for count in (1, 2):
        torch.set_num_threads(count)
        results.append(augmented(images, ALONE[name]))
    assert torch.equal(*results)


@pytest.mark.parametrize("name", ALONE)
def test_epochs_and_seeds_differ_and_repeat(name: str) -> None:
    """The same key repeats the result; another epoch or seed gives another."""
    images = random_images(20)

    def run(seed: int, epoch: int) -> Tensor:
        return augment(images, ALONE[name], seed=seed, epoch=epoch, samples=torch.arange(20))

    assert torch.equal(run(1, 0), run(1, 0))
    assert not torch.equal(run(1, 0), run(1, 1))
    assert not torch.equal(run(1, 0), run(2, 0))


@pytest.mark.parametrize("name", ALONE)
def test_input_and_global_generator_are_left_alone(name: str) -> None:
    """The images given are not written to, and torch's global generator is not advanced."""
    images = random_images(20)
    copy, state = images.clone(), torch.get_rng_state()
    result = augmented(images, ALONE[name])
    assert torch.equal(images, copy)
    assert result.data_ptr() != images.data_ptr()
    assert torch.equal(torch.get_rng_state(), state)


def test_autocast_and_gradients_stay_out_of_it() -> None:
    """Under bfloat16 autocast the result is the same to the bit, and it requires no gradient even if the input does."""
    images = random_images(20)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        result = augmented(images, EVERYTHING)
    assert torch.equal(result, augmented(images, EVERYTHING))
    assert not augmented(images.requires_grad_(), EVERYTHING).requires_grad


def test_white_stays_within_range() -> None:
    """Weights whose sum is rounded above 1 do not make a white image whiter than white."""
    white = torch.ones(500, 1, 28, 28)
    assert float(augmented(white, Augmentation(rotate_degrees=180.0, blur_sigma=3.0)).max()) == 1


def test_operations_draw_from_streams_of_their_own() -> None:
    """No two operations share their random numbers."""
    streams = [AFFINE_STREAM, MORPHOLOGY_STREAM, BLUR_STREAM, DOTS_STREAM, NOISE_STREAM]
    assert len(set(streams)) == len(streams)


def test_one_operation_does_not_change_the_others_draws() -> None:
    """With noise on top, the pixels without noise are those of the run without it."""
    images = random_images(50)
    without = augmented(images, replace(EVERYTHING, noise_probability=0.0))
    noisy = augmented(images, EVERYTHING)
    changed = noisy != without
    assert bool(((noisy == 0) | (noisy == 1))[changed].all())
    assert float(changed.float().mean()) < 0.05


fractions = st.floats(0, 1)
augmentations = st.builds(
    lambda share, erode_share, **knobs: Augmentation(
        erode_probability=share * erode_share, dilate_probability=share * (1 - erode_share), **knobs
    ),
    share=fractions, erode_share=fractions, rotate_degrees=st.floats(0, 180), translate=fractions,
    scale=st.floats(0, 0.9), noise_probability=fractions, salt_vs_pepper=fractions, dots_probability=fractions,
    dots_count=st.integers(1, 64), dots_size=st.integers(1, 64), blur_sigma=st.floats(0, 10),
    morphology_kernel=st.sampled_from([3, 5, 7]), random_resized_crop_scale=st.floats(0.001, 1),
    random_resized_crop_ratio=st.floats(1, 10), random_crop_padding=st.integers(0, 12),
    random_horizontal_flip=fractions, random_vertical_flip=fractions, brightness=st.floats(0, 10),
    contrast=st.floats(0, 10),
)  # fmt: skip


@given(
    augmentation=augmentations, seed=st.integers(0, 2**63 - 1), epoch=st.integers(0, 10_000),
    shape=st.tuples(st.integers(0, 5), st.integers(1, 3), st.integers(1, 12), st.integers(1, 12)),
)  # fmt: skip
@settings(max_examples=80, deadline=None)
def test_any_knobs_keep_shape_and_range_and_repeat(
    augmentation: Augmentation, seed: int, epoch: int, shape: tuple[int, int, int, int]
) -> None:
    """Whatever the knobs and the shape: float32 of the same shape, within 0..1, the same each time."""
    images, samples = random_images(*shape), torch.arange(shape[0])
    result = augment(images, augmentation, seed=seed, epoch=epoch, samples=samples)
    assert result.dtype == torch.float32
    assert result.shape == images.shape
    assert bool(((result >= 0) & (result <= 1)).all())
    assert torch.equal(augment(images, augmentation, seed=seed, epoch=epoch, samples=samples), result)
