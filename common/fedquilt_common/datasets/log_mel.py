"""Spectrograms of sound: the logarithm of its power in bands that are equally wide on the mel scale."""

from __future__ import annotations

import functools
import math

import numpy as np
from numpy.typing import NDArray

OFFSET = np.float32(1e-6)
"""Added before the logarithm, so that silence is finite."""


def mel(hertz: float) -> float:
    """Return a frequency on the mel scale of HTK (Young et al., "The HTK Book", section 5.6); Slaney's differs."""
    return 2595.0 * math.log10(1 + hertz / 700.0)


def from_mel(value: float) -> float:
    """Return the frequency in Hz of a value of ``mel``."""
    return float(700.0 * (10.0 ** (value / 2595.0) - 1))


@functools.lru_cache(maxsize=4)
def mel_filters(rate: int, length: int, bands: int) -> NDArray[np.float32]:
    """Return triangular filters that are equally wide on the mel scale, from 0 Hz to half the sampling rate.

    A filter rises from the centre of the one before it to 1 at its own centre, and falls to the centre of the next one;
    its area is not normalised.

    Args:
        rate: samples of sound in a second.
        length: of the Fourier transform.
        bands: number of filters.

    Returns:
        float32 of shape (length // 2 + 1, bands).
    """
    edges = np.array([from_mel(value) for value in np.linspace(0, mel(rate / 2), bands + 2)])
    frequencies = np.linspace(0, rate / 2, length // 2 + 1)[:, None]
    rising = (frequencies - edges[:-2]) / (edges[1:-1] - edges[:-2])
    falling = (edges[2:] - frequencies) / (edges[2:] - edges[1:-1])
    filters: NDArray[np.float32] = np.minimum(rising, falling).clip(min=0).astype(np.float32)
    return filters


def log_mel(sound: NDArray[np.float32], filters: NDArray[np.float32], window: int, step: int) -> NDArray[np.float32]:
    """Return the logarithm of a sound's magnitudes in the bands of ``filters``.

    Each frame is a Hann window around its time; silence lies before and after the sound. Needs SciPy.

    Args:
        sound: shape (n,), n at least 1.
        filters: of ``mel_filters``.
        window: samples of a frame, even.
        step: samples from a frame to the next one.

    Returns:
        float32 of shape (1 + n // step, bands).
    """
    from scipy import fft, signal  # not at the top: they would cost an idle agent memory

    padded = np.pad(sound.astype(np.float32, copy=False), window // 2)
    frames = np.lib.stride_tricks.sliding_window_view(padded, window)[::step]
    tapered = frames * signal.get_window("hann", window).astype(np.float32)
    magnitudes = np.abs(fft.rfft(tapered, 2 * (len(filters) - 1), axis=1))
    spectrogram: NDArray[np.float32] = np.log(magnitudes @ filters + OFFSET)
    return spectrogram
