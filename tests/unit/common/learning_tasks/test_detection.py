"""Detection: average precision by hand and as pycocotools computes it, and boxes that cannot be."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from fedquilt_common.errors import DataUnavailableError, ExperimentError
from fedquilt_common.learning_tasks import Detection, add_counts
from fedquilt_common.learning_tasks.boxes import MOST_DETECTIONS, match_boxes, overlaps, select_boxes
from fedquilt_common.learning_tasks.detection import BINS, average_precision, find_bins

ONE = Detection(1)
BOX = (0.5, 0.5, 0.2, 0.2)
FAR = (0.1, 0.1, 0.1, 0.1)


def labels(*rows: tuple[float, ...], most: int = 4) -> NDArray[np.float32]:
    """One image's boxes, padded."""
    padded = np.full((1, most, 5), -1.0, np.float32)
    padded[0, : len(rows)] = rows or padded[0, :0]
    return padded


def scores_of(candidates: Any, objects: Any, task: Detection = ONE) -> dict[str, float]:
    return task.scores(task.count(np.array([candidates], np.float32), objects))


def test_overlaps_by_hand() -> None:
    one = np.array([[0.5, 0.5, 0.2, 0.2]])
    others = np.array([[0.5, 0.5, 0.2, 0.2], [0.6, 0.5, 0.2, 0.2], [0.5, 0.5, 0.1, 0.2], [0.9, 0.9, 0.1, 0.1]])
    np.testing.assert_allclose(overlaps(one, others)[0], [1.0, 1 / 3, 0.5, 0.0], atol=1e-12)
    assert overlaps(np.zeros((1, 4)), np.zeros((1, 4))).tolist() == [[0.0]]  # without area


def test_a_perfect_detector() -> None:
    assert scores_of([[*BOX, 0.9], [*FAR, 0.8]], labels((0, *BOX), (0, *FAR))) == {"map50": 1.0, "map50_95": 1.0}


def test_a_wrong_detection_above_a_right_one_halves_the_precision() -> None:
    found = scores_of([[*FAR, 0.9], [*BOX, 0.8]], labels((0, *BOX)))
    assert found == pytest.approx({"map50": 0.5, "map50_95": 0.5})


def test_an_object_that_is_not_found_costs_the_recalls_beyond() -> None:
    found = scores_of([[*BOX, 0.9]], labels((0, *BOX), (0, *FAR)))
    assert found["map50"] == pytest.approx(51 / 101)  # recalls 0.00 to 0.50


def test_a_loose_box_counts_for_the_low_overlaps_only() -> None:
    found = scores_of([[0.5, 0.5, 0.2, 0.154, 0.9]], labels((0, *BOX)))  # overlap 0.77: six of ten
    assert found == pytest.approx({"map50": 1.0, "map50_95": 0.6})


def test_only_classes_with_objects_count() -> None:
    found = scores_of([[*BOX, 0.9, 0.0, 0.0], [*FAR, 0.0, 0.0, 0.9]], labels((0, *BOX), (1, *FAR)), Detection(3))
    assert found["map50"] == 0.5  # class 0 is perfect, class 1 is not found, class 2 has no objects


def test_a_second_detection_of_an_object_is_wrong() -> None:
    near = (0.5, 0.5, 0.2, 0.145)  # overlaps by less than non-maximum suppression needs
    hits = match_boxes(np.array([BOX, near]), np.array([BOX]), np.array([0.5]))
    assert hits.tolist() == [[True, False]]


def test_of_two_objects_that_it_overlaps_equally_a_detection_takes_the_last() -> None:
    """As pycocotools: the first one is then left for the next detection."""
    first, last, between = ((x, 0.5, 0.25, 0.5) for x in (0.25, 0.5, 0.375))
    assert overlaps(np.array([between]), np.array([first, last])).tolist() == [[1 / 3, 1 / 3]]
    hits = match_boxes(np.array([between, first]), np.array([first, last]), np.array([0.3]))
    assert hits.tolist() == [[True, True]]


def test_suppression_keeps_the_best_of_a_class() -> None:
    near = (0.5, 0.5, 0.2, 0.19)
    found = select_boxes(np.array([[*near, 0.3, 0.0], [*BOX, 0.4, 0.0], [*near, 0.0, 0.2], [*FAR, 0.0005, 0.0]]))
    assert (found.kinds.tolist(), found.scores.tolist()) == ([0, 1], [0.4, 0.2])
    many = np.random.default_rng(0).uniform(0.01, 0.02, (500, 5))
    many[:, :2] = np.random.default_rng(1).uniform(size=(500, 2))
    assert len(select_boxes(many).scores) == MOST_DETECTIONS
    odd = np.array([[np.nan, 0.5, 0.1, 0.1, 0.9], [*BOX, np.nan], [*BOX, np.inf]])
    assert select_boxes(odd).scores.tolist() == [1.0]


@pytest.mark.parametrize("chunk", [1, 7, 64])
def test_suppression_does_not_depend_on_the_size_of_its_chunks(chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    candidates = random_images(1)[0][0]
    whole = select_boxes(candidates)
    monkeypatch.setattr("fedquilt_common.learning_tasks.boxes._CHUNK", chunk)
    assert np.array_equal(select_boxes(candidates).places, whole.places)
    assert 0 < len(whole.scores) < np.count_nonzero(candidates[:, 4:])


def test_counts_of_clients_add_up() -> None:
    outputs, objects = random_images(12)
    task = Detection(3)
    whole = task.count(outputs, objects)
    parts = add_counts(task.count(outputs[at], objects[at]) for at in np.array_split(np.arange(12), 5))
    assert all(np.array_equal(whole[name], parts[name]) for name in whole)
    assert {name: x.shape for name, x in whole.items()} == dict(task.count_shapes)


def random_images(count: int) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Images with 0 to 8 objects of three classes; candidates near them, elsewhere, and twice."""
    rng = np.random.default_rng(0)
    outputs, objects = np.zeros((count, 60, 7), np.float32), np.full((count, 8, 5), -1.0, np.float32)
    for image in range(count):
        number = rng.integers(0, 9)
        boxes = np.concatenate([rng.uniform(0.2, 0.8, (number, 2)), rng.uniform(0.05, 0.4, (number, 2))], axis=1)
        kinds = rng.integers(0, 3, number)
        objects[image, :number] = np.column_stack([kinds, boxes])
        near = np.repeat(boxes, 3, axis=0) * rng.normal(1, 0.08, (3 * number, 4))
        far = np.concatenate([rng.uniform(0.2, 0.8, (20, 2)), rng.uniform(0.05, 0.4, (20, 2))], axis=1)
        places = np.concatenate([near, far])
        chosen = np.concatenate([np.repeat(kinds, 3), rng.integers(0, 3, 20)])
        outputs[image, : len(places), :4] = places
        outputs[image, np.arange(len(places)), 4 + chosen] = rng.beta(2, 2, len(places))
    return outputs, objects


def test_it_is_what_pycocotools_computes() -> None:
    """Its exact value is at most 0.005 above that of the histograms, and never below."""
    coco, evaluation = (pytest.importorskip(f"pycocotools.{name}") for name in ("coco", "cocoeval"))
    outputs, objects = random_images(150)
    images = [{"id": number} for number in range(len(outputs))]
    truth = coco.COCO()
    truth.dataset = {"images": images, "categories": [{"id": k} for k in range(3)], "annotations": [
        {"id": 1 + 100 * image + place, "image_id": image, "category_id": int(row[0]), "iscrowd": 0,
         "bbox": corner(row[1:]), "area": float(row[3] * row[4])}
        for image, rows in enumerate(objects) for place, row in enumerate(rows) if row[0] >= 0
    ]}  # fmt: skip
    truth.createIndex()
    detected = []
    for image, candidates in enumerate(outputs):
        found = select_boxes(candidates)
        detected += [
            {"image_id": image, "category_id": int(kind), "bbox": corner(place), "score": float(score)}
            for place, score, kind in zip(found.places, found.scores, found.kinds, strict=True)
        ]
    exact = evaluation.COCOeval(truth, truth.loadRes(detected), "bbox")
    exact.params.maxDets, exact.params.areaRng, exact.params.areaRngLbl = [300], [[0, 1e10]], ["all"]
    exact.evaluate()
    exact.accumulate()
    precision = exact.eval["precision"][:, :, :, 0, 0]
    task = Detection(3)
    scores = task.scores(task.count(outputs, objects))
    for name, expected in (("map50", precision[0].mean()), ("map50_95", precision.mean())):
        assert expected - 0.005 <= scores[name] <= expected + 1e-9


def corner(place: Any) -> list[float]:
    """Left, top, width and height."""
    x, y, width, height = (float(value) for value in place)
    return [x - width / 2, y - height / 2, width, height]


def test_bins_with_one_detection_each_are_exact() -> None:
    hits, found = np.zeros(8), np.ones(8)
    hits[[7, 5, 2]] = 1  # ranks 1, 3 and 6 of 8, of 4 objects
    recalls = np.linspace(0, 1, 101)
    expected = [1.0 if r <= 0.25 else 2 / 3 if r <= 0.5 else 0.5 if r <= 0.75 else 0.0 for r in recalls]
    assert average_precision(hits, found, 4.0) == pytest.approx(np.mean(expected))


@pytest.mark.parametrize(
    ("low", "high"), [(0.001, 1.0), (0.001, 0.05), (0.001, 0.003), (0.45, 0.55), (0.95, 1.0), (0.9999, 1.0)]
)
def test_it_hardly_matters_in_which_range_a_model_scores(low: float, high: float) -> None:
    """Early in training all scores can be near 0, late near 1; the order is what counts."""
    rng = np.random.default_rng(0)
    right = rng.random(3000) < 0.3
    scores = low + (high - low) / (1 + np.exp(-rng.normal(3.0 * right - 1.5, 1.0)))
    order, bins, objects = np.argsort(scores), find_bins(scores), float(right.sum())
    exact = average_precision(right[order].astype(float), np.ones(3000), objects)
    counted = average_precision(
        np.bincount(bins[right], minlength=BINS).astype(float), np.bincount(bins, minlength=BINS).astype(float), objects
    )
    assert 0.95 < exact < 0.97
    assert exact - 0.005 <= counted <= exact + 1e-9


def test_bins_ascend_with_the_score_from_the_least_to_one() -> None:
    scores = np.sort(np.concatenate([np.geomspace(0.001, 0.5, 5000), 1 - np.geomspace(1e-6, 0.5, 5000), [0.5, 1.0]]))
    bins = find_bins(scores)
    assert (np.diff(bins) >= 0).all()
    assert (bins[0], bins[-1]) == (1, BINS - 1)
    middle = find_bins(np.array([np.nextafter(0.5, 0), 0.5, 0.25, 0.75]))
    assert middle.tolist() == [575, 576, 512, 639]  # 64 bins an octave


@pytest.mark.parametrize("row", [(1, *BOX), (0.5, *BOX), (-2, *BOX), (0, np.nan, 0.5, 0.1, 0.1)])
def test_boxes_that_cannot_be_are_refused(row: tuple[float, ...]) -> None:
    ONE.check(labels((0, *BOX)))
    with pytest.raises(DataUnavailableError, match="a box has a class"):
        ONE.check(labels(row))


def test_a_model_without_a_loss_or_with_other_outputs_is_refused() -> None:
    with pytest.raises(ExperimentError, match="no method training_loss"):
        ONE.loss(None, None)
    with pytest.raises(ExperimentError, match=r"shape \(n, 3, 6\); .* candidates of shape \(n, candidates, 5\)"):
        ONE.count(np.zeros((1, 3, 6), np.float32), labels())
    y = labels((0, *BOX))
    assert "no method training_loss" in ONE.find_output_problem([(3, 5)], y, own_loss=False)
    assert "shape (n, 3, 6);" in ONE.find_output_problem([(3, 5), (3, 6)], y, own_loss=True)
    assert ONE.find_output_problem([(3, 5)], y, own_loss=True) == ""


def test_images_without_a_box_score_nothing() -> None:
    assert ONE.can_score(labels((0, *BOX)))
    assert not ONE.can_score(labels())


@pytest.mark.parametrize("odd", [np.nan, np.inf, -np.inf, -1.0, 0.4, 1e300])
def test_no_counts_of_a_client_make_an_impossible_score(odd: float) -> None:
    for name, shape in ONE.count_shapes.items():
        counts = {key: np.ones(other) for key, other in ONE.count_shapes.items()} | {name: np.full(shape, odd)}
        scores = ONE.scores(counts)
        assert all(0 <= value <= 1 for value in scores.values())
    assert ONE.scores({name: np.zeros(shape) for name, shape in ONE.count_shapes.items()}) == {}
