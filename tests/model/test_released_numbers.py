"""Our model gives the released implementation's numbers on its deterministic weights."""

import json
import re
import shutil
from pathlib import Path

import check_parity
import numpy as np
import pytest
import torch
from parity import compare_case, compare_names, compare_prompts
from released_oracle import case_names, draw, oracle_case, oracle_model, oracle_processor, released_weight

from rexseek.model.released import KEY_MAPPING, from_released, to_released
from tests.conftest import ORACLE_DATA, oracle_folder

SMALL, FULL = "cases_tinytowers", "cases"


@pytest.fixture(scope="module")
def model():
    return oracle_model(ORACLE_DATA, SMALL)


@pytest.fixture(scope="module")
def processor():
    return oracle_processor(ORACLE_DATA, SMALL)


def require_oracle() -> Path:
    folder = oracle_folder()
    if folder is None:
        pytest.skip("the full oracle is not here; set REXSEEK_ORACLES")
    return folder


def check_case(model, processor, folder: Path, variant: str, name: str) -> list[str]:
    """Assert that a case agrees; the quantities that were compared."""
    differences, skipped = compare_case(model, processor, oracle_case(folder, variant, name))
    outside = [found for found in differences if not found.ok]
    assert not outside
    assert not [name for name in skipped if not name.startswith("clip_hidden")]  # behind the selected layer
    return [found.quantity for found in differences]


@pytest.mark.parametrize("name", case_names(ORACLE_DATA, SMALL))
def test_case_equals_released(model, processor, name):
    compared = check_case(model, processor, ORACLE_DATA, SMALL, name)
    assert {"input_ids", "gt_boxes", "inputs_embeds"} <= set(compared)
    if name != "c11_ragged_forward":
        assert {"object_features", "level3_sub", "low_res_sub", "step_logits", "generated_ids"} <= set(
            compared
        )


def test_further_cases_equal_released(model, processor):
    folder = require_oracle()
    further = set(case_names(folder, SMALL)) - set(case_names(ORACLE_DATA, SMALL))
    assert further
    for name in sorted(further):
        check_case(model, processor, folder, SMALL, name)


@pytest.mark.slow
def test_encoders_of_full_size_equal_released():
    """One case; `tools/check_parity.py` runs them all."""
    folder = require_oracle()
    name = "c03_square_one"
    check_case(oracle_model(folder, FULL), oracle_processor(folder, FULL), folder, FULL, name)


def test_eager_attention_equals_released(processor):
    check_case(oracle_model(ORACLE_DATA, SMALL, "eager"), processor, ORACLE_DATA, SMALL, "c03_square_one")


def test_ragged_batch_through_the_processor_equals_released(model, processor):
    """Two images with 7 and 3 boxes, questions of different lengths, padded on the right."""
    case = oracle_case(ORACLE_DATA, SMALL, "c11_ragged_forward")
    batch = processor(
        [case.folder / item["image"] for item in case.items],
        [item["boxes_xyxy"] for item in case.items],
        [item["question"] for item in case.items],
    )
    lengths = batch["attention_mask"].sum(dim=1)
    assert lengths.tolist() == case.arrays["lengths"].tolist()
    with torch.inference_mode():
        logits = model(**batch).logits
    last = torch.stack([row[length - 1] for row, length in zip(logits, lengths, strict=True)])
    np.testing.assert_allclose(last, case.arrays["last_valid_logits"], atol=3e-4, rtol=0)


def test_prompts_equal_released(processor):
    differences = compare_prompts(processor, ORACLE_DATA)
    assert len(differences) >= 5 and all(found.ok for found in differences)


def test_names_of_the_released_3b_checkpoint():
    assert all(found.ok for found in compare_names(require_oracle()))


def test_both_ways_of_renaming_agree():
    """The function and transformers' patterns; the patterns leave our own names alone."""
    keys = json.loads((require_oracle() / "state_dict_keys_3b.json").read_text(encoding="utf-8"))["keys"]

    def by_patterns(name: str) -> str:
        for pattern, ours in KEY_MAPPING.items():
            name = re.sub(pattern, ours, name)
        return name

    for name in keys:
        assert by_patterns(name) == from_released(name) == by_patterns(from_released(name))


def test_unknown_names_are_refused():
    for function in (from_released, to_released):
        with pytest.raises(ValueError, match="not a tensor"):
            function("head.weight")


def test_weight_recipe():
    """The recipe's own check values."""
    assert released_weight("mm_projector.0.bias", (64,)).dtype == np.float32
    np.testing.assert_allclose(
        draw("roi_level0", (192, 192, 192)).ravel()[:2], [0.43881556, 0.19829793], atol=1e-8, rtol=0
    )


def test_check_parity_sees_a_wrong_number(tmp_path, capsys):
    """A folder with one case, as it is and with one logit moved by 4e-4; and a folder without cases."""
    name = "c11_ragged_forward"
    shutil.copytree(ORACLE_DATA, tmp_path / "oracle")
    for path in (tmp_path / "oracle" / SMALL).iterdir():
        if path.stem != name:
            path.unlink()
    command = ["--oracle", str(tmp_path / "oracle")]
    assert check_parity.main(command) == 0
    summary = capsys.readouterr().out.splitlines()[-1]
    assert summary.startswith("parity: 2 cases, 15 quantities, all within tolerance"), summary

    path = tmp_path / "oracle" / SMALL / f"{name}.npz"
    arrays = dict(np.load(path))
    arrays["last_valid_logits"][1, 7] += 4e-4
    np.savez(path, **arrays)
    assert check_parity.main(command) == 1
    summary = capsys.readouterr().out.splitlines()[-1]
    assert f"1 outside tolerance: {SMALL}/{name} last_valid_logits" in summary
    assert check_parity.main(["--oracle", str(tmp_path)]) == 2
