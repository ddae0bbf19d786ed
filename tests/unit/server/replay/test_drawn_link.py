"""Drawn transfers: without losses the plain time, on average the mean, and with losses what the repairs cost."""

from __future__ import annotations

import random
from collections.abc import Sequence
from statistics import mean

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedquilt_common.wire.chunks import LARGEST_CHUNK
from fedquilt_common.wire.link import Link
from fedquilt_common.wire.repairs import FIRST_PROBE_SECONDS, LAST_PROBE_SECONDS, REPAIR_SECONDS, SINGLE_REPAIRS
from fedquilt_server.replay.drawn_link import DrawnLink, MeanLink, count_chunks, draw_download, draw_uploads
from fedquilt_server.replay.measurements import mean_transfer_seconds

LOST, KEPT = 0.0, 0.99
LOSSY = Link(rate=1000.0, latency=0.5, loss=0.5)
"""A transfer of 1000 bytes is one chunk, occupies it for 1 s and arrives 0.5 s later."""
CUT = Link(rate=100.0, latency=0.5, loss=0.5, mtu=228)
"""Chunks of 100 bytes, each of which occupies it for 1 s."""
REPLIES = st.lists(st.tuples(st.floats(0, 1000), st.integers(0, 10**6)), min_size=1, max_size=8)
LOSSLESS = st.builds(
    Link,
    rate=st.none() | st.floats(1, 1e6),
    latency=st.floats(0, 10),
    mtu=st.none() | st.integers(200, 10_000),
    speedup=st.sampled_from([1.0, 3.0, 100.0]),
    window=st.none() | st.integers(1, 10),
)


class Script(random.Random):
    """Draws these numbers in turn; a transfer must draw as many."""

    def __init__(self, *numbers: float) -> None:
        super().__init__(0)
        self.left = list(numbers)

    def random(self) -> float:
        return self.left.pop(0)


def download(link: Link, size: int, *numbers: float) -> float:
    script = Script(*numbers)
    seconds = draw_download(DrawnLink(link, script), size)
    assert script.left == []
    return seconds


def upload(link: Link, ready: Sequence[float], sizes: Sequence[int], *numbers: float) -> list[float]:
    script = Script(*numbers)
    arrivals = draw_uploads(DrawnLink(link, script), ready, sizes)
    assert script.left == []
    return arrivals


def arrive_in_turn(link: Link, replies: Sequence[tuple[float, int]]) -> list[float]:
    """The arrivals at a link that takes the mean for each reply."""
    arrivals, free_at = [ready for ready, _ in replies], 0.0
    for number in sorted(range(len(replies)), key=lambda number: replies[number][0]):
        ready, size = replies[number]
        free_at = max(free_at, ready) + link.mean_seconds(size)
        arrivals[number] = free_at + link.mean_latency
    return arrivals


@given(LOSSLESS, REPLIES, st.integers(0, 99))
def test_without_losses_and_open_times_nothing_is_drawn(
    link: Link, replies: list[tuple[float, int]], seed: int
) -> None:
    line = DrawnLink(link, random.Random(seed), opened_at=seed / 7)
    size = replies[0][1]
    assert draw_download(line, size) == mean_transfer_seconds(link, size)
    assert draw_uploads(line, *zip(*replies, strict=True)) == arrive_in_turn(link, replies)


@given(REPLIES, st.sampled_from([LOSSY, CUT, Link(rate=9.0, open=((0.0, 5.0),), period=20.0)]))
def test_a_link_that_takes_the_mean_draws_nothing(replies: list[tuple[float, int]], link: Link) -> None:
    size = replies[0][1]
    assert draw_download(MeanLink(link), size) == mean_transfer_seconds(link, size)
    assert draw_uploads(MeanLink(link), *zip(*replies, strict=True)) == arrive_in_turn(link, replies)


@pytest.mark.parametrize("size", [100, 450, 3000, 9000])  # more than 50 packets are drawn together
@pytest.mark.parametrize("window", [1, 3, 16])
def test_transfers_in_windows_take_the_mean_on_average(size: int, window: int) -> None:
    """4000 draws with a fixed seed are within 5 % of the mean; a download has the manifest's timeouts in addition."""
    link = Link(rate=1000.0, latency=0.1, loss=0.2, mtu=100, window=window, speedup=2.0)
    line = DrawnLink(link, random.Random(1))
    assert mean(line.draw_seconds(size) for _ in range(4000)) == pytest.approx(link.mean_seconds(size), rel=0.05)
    arrivals = [draw_uploads(line, [0.0], [size])[0] for _ in range(4000)]
    assert mean(arrivals) == pytest.approx(mean_transfer_seconds(link, size), rel=0.05)
    manifest = link.mean_seconds(0)
    downloads = [draw_download(line, size) for _ in range(4000)]
    assert mean(downloads) == pytest.approx(mean_transfer_seconds(link, size) + manifest, rel=0.05)


@pytest.mark.parametrize("chunks", [50, 51, 5000])
def test_as_many_chunks_are_lost_as_the_link_says(chunks: int) -> None:
    line = DrawnLink(CUT, random.Random(1))
    lost = [line.draw_lost(chunks) for _ in range(400)]
    assert mean(lost) == pytest.approx(CUT.loss * chunks, rel=0.05)
    assert 0 <= min(lost) < max(lost) <= chunks


def test_a_lost_patch_costs_the_pause_the_request_and_its_time_again() -> None:
    """The manifest arrives with its first try, or its second; the pause doubles."""
    assert download(LOSSY, 1000, KEPT, KEPT) == 1.5
    assert download(LOSSY, 1000, LOST, KEPT, KEPT) == 2.0
    once = 1.5 + REPAIR_SECONDS + 0.5 + 1.5
    assert download(LOSSY, 1000, KEPT, LOST, KEPT) == once
    assert download(LOSSY, 1000, KEPT, LOST, LOST, KEPT) == once + 2 * REPAIR_SECONDS + 0.5 + 1.5


def test_few_lost_chunks_are_requested_one_by_one_and_many_with_the_whole_slot() -> None:
    """After the repair with several chunks, the pause is four times their distance of 1 s."""
    few = download(CUT, 4000, KEPT, *[LOST] * 3, *[KEPT] * 37, LOST, KEPT, KEPT, KEPT)
    assert few == 40.5 + REPAIR_SECONDS + 0.5 + 3.5 + 4.0 + 0.5 + 1.5
    lost = SINGLE_REPAIRS + 1
    many = download(CUT, 4000, KEPT, *[LOST] * lost, *[KEPT] * (40 - lost), *[KEPT] * lost)
    assert many == 40.5 + REPAIR_SECONDS + 0.5 + 40.5


def test_a_lost_reply_is_sent_again_after_the_pause_and_once_the_link_is_free() -> None:
    assert upload(LOSSY, [0.0], [1000], LOST, LOST, KEPT) == [3 * FIRST_PROBE_SECONDS + 1.5]
    later = [0.0, 0.0, 0.0, 0.0]
    assert upload(LOSSY, later, [1000] * 4, LOST, KEPT, KEPT, KEPT, KEPT) == [5.5, 2.5, 3.5, 4.5]
    assert upload(LOSSY, [0.0], [5000], LOST, KEPT) == [5.5 + 5.5]
    times = 12
    pauses = [min(FIRST_PROBE_SECONDS * 2**n, LAST_PROBE_SECONDS) for n in range(times)]
    assert upload(LOSSY, [0.0], [1000], *[LOST] * times, KEPT) == [sum(pauses) + 1.5]


def test_the_last_chunk_brings_the_list_of_the_missing_ones_at_once() -> None:
    """Three chunks and the list, each with its latency; the next to last draw is that of the list's tries."""
    assert upload(CUT, [0.0], [300], LOST, KEPT, KEPT, KEPT, KEPT) == [3.5 + 0.5 + 1.5]
    assert upload(CUT, [0.0], [300], LOST, KEPT, KEPT, LOST, KEPT, KEPT) == [3.5 + 1.0 + 1.5]


def test_a_lost_last_chunk_is_sent_again_and_then_the_other_missing_ones() -> None:
    assert upload(CUT, [0.0], [300], KEPT, KEPT, LOST, KEPT) == [3.5 + 1.5]
    listed = 3.5 + 1.5 + 0.5
    assert upload(CUT, [0.0], [300], LOST, KEPT, LOST, KEPT, KEPT, KEPT) == [listed + 1.5]
    again = listed + FIRST_PROBE_SECONDS + 1.5 + 0.5
    assert upload(CUT, [0.0], [300], LOST, KEPT, LOST, KEPT, KEPT, LOST, KEPT, KEPT, KEPT) == [again + 1.5]


def test_time_on_a_link_with_a_speedup_passes_faster() -> None:
    fast = Link(rate=1000.0, latency=0.5, loss=0.5, speedup=4.0)
    assert download(fast, 1000, KEPT, LOST, KEPT) == download(LOSSY, 1000, KEPT, LOST, KEPT) / 4
    assert upload(fast, [0.0], [1000], LOST, KEPT) == [upload(LOSSY, [0.0], [1000], LOST, KEPT)[0] / 4]


@given(st.floats(0, 1000), st.integers(0, 10_000), st.floats(0, 100))
def test_transfers_wait_for_the_open_times(opened_at: float, size: int, ready: float) -> None:
    link = Link(rate=1000.0, latency=0.5, open=((10.0, 12.0),), period=60.0)
    line = DrawnLink(link, random.Random(0), opened_at)
    assert draw_download(line, size) == link.end_of(opened_at, size / 1000) - opened_at + 0.5
    (arrival,) = draw_uploads(line, [ready], [size])
    sent_at = (opened_at + arrival - 0.5) % 60.0
    assert arrival >= ready + size / 1000 + 0.5 - 1e-6
    assert 10.0 - 1e-6 <= sent_at <= 12.0 + 1e-6


def test_a_repair_waits_for_the_open_times() -> None:
    """The link is open for the first 2 s of every 10 s: the request goes with the second ones, the patch at once."""
    link = Link(rate=1000.0, loss=0.5, open=((0.0, 2.0),), period=10.0)
    assert download(link, 1000, KEPT, LOST, KEPT) == 11.0
    assert upload(link, [0.0], [1000], LOST, KEPT) == [11.0]


def test_requests_for_lost_chunks_wait_for_the_open_times_too() -> None:
    """What is lost in the first open time is requested, and sent again, in the second one."""
    link = Link(rate=100.0, latency=3.0, loss=0.5, mtu=228, open=((0.0, 4.0),), period=10.0)
    assert download(link, 300, KEPT, LOST, KEPT, KEPT, KEPT) == 17.0  # the request goes at 10, the chunk at 13
    assert upload(link, [0.0], [300], LOST, KEPT, KEPT, KEPT, KEPT) == [17.0]  # the list goes at 10, the chunk at 13


def test_chunks_fit_the_packets_of_a_link_that_loses_some() -> None:
    assert count_chunks(CUT, 401) == 5
    assert count_chunks(CUT, 0) == 1
    assert count_chunks(Link(mtu=228), 401) == 1
    assert count_chunks(LOSSY, 48 * LARGEST_CHUNK + 48) == 49
