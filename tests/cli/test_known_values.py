"""Faults that users of other stacks have reported, each as the smallest checkpoint that shows it, with the value that is right.

Experts are constant: every row of the gate gives g and every row of up gives u for a token of 1/H, and down averages, so a column of the
result is the weights' sum of silu(g) * u.
"""

import json
import math
import re
import struct
import unittest
from pathlib import Path

from support import BAD_INPUT, CHECK_FAILED, OK, USAGE, CliTest, bf16, f32, floats, from_bf16, i64, write_checkpoint, write_file

HIDDEN, INTERMEDIATE = 256, 128
ONE = {"fp8": b"\x38", "nvfp4": b"\x22", "mxfp4": b"\x22"}  # the code (two codes) of 1


def silu(x):
    return x / (1 + math.exp(-x))


def matrix(weights, base, rows, cols, value, scale_byte=None, global_scale=None):
    """All weights equal `value`: codes of 1 and a scale."""
    if weights == "fp8":
        grid = [-(-rows // 128), -(-cols // 128)]
        return {base + ".weight": ("F8_E4M3", [rows, cols], ONE["fp8"] * (rows * cols)),
                base + ".scale": ("F32", grid, f32([value] * math.prod(grid)))}
    if weights == "nvfp4":
        return {base + ".weight": ("U8", [rows, cols // 2], ONE["nvfp4"] * (rows * cols // 2)),
                base + ".weight_scale": ("F8_E4M3", [rows, cols // 16], bytes([scale_byte or 0x38]) * (rows * cols // 16)),
                base + ".weight_scale_2": ("F32", [], f32([value if global_scale is None else global_scale]))}
    byte = scale_byte if scale_byte is not None else 127 + round(math.log2(value))
    return {base + ".weight": ("U8", [rows, cols // 2], ONE["mxfp4"] * (rows * cols // 2)),
            base + ".scale": ("F8_E8M0", [rows, cols // 32], bytes([byte]) * (rows * cols // 32))}


def constant_expert(weights, prefix, gate, up, names=("w1", "w3", "w2"), intermediate=INTERMEDIATE):
    return (matrix(weights, f"{prefix}.{names[0]}", intermediate, HIDDEN, gate) | matrix(weights, f"{prefix}.{names[1]}", intermediate, HIDDEN, up) |
            matrix(weights, f"{prefix}.{names[2]}", HIDDEN, intermediate, 1 / intermediate))


class KnownValues(CliTest):
    def model(self, tensors, name="model", **config):
        return write_checkpoint(self.folder / name, tensors, config)

    def tokens(self, ids=((0,),), weights=None):
        count, topk = len(ids), len(ids[0])
        path = self.folder / "in.safetensors"
        flat = [1.0] * (count * topk) if weights is None else [w for row in weights for w in row]
        write_file(path, {"x": ("BF16", [count, HIDDEN], bf16([1 / HIDDEN] * (count * HIDDEN))), "topk_ids": ("I64", [count, topk], i64([e for row in ids for e in row])),
                          "topk_weights": ("F32", [count, topk], f32(flat))})
        return path

    def y(self, checkpoint, *options, ids=((0,),), weights=None):
        """Column 0 of each token, after it is known that all columns are equal."""
        raw = self.run_layer(checkpoint, self.tokens(ids, weights), *options)["y"][2]
        rows = [from_bf16(raw[i:i + 2 * HIDDEN]) for i in range(0, len(raw), 2 * HIDDEN)]
        for row in rows:
            self.assertEqual(len(set(row)), 1)
        return [row[0] for row in rows]

    def near(self, found, wanted):
        self.assertLess(abs(found - wanted), abs(wanted) * 2**-8 + 1e-9, (found, wanted))

    def verified(self, checkpoint, *options, ok=True):
        result = self.call("verify", checkpoint, "--json", *options)
        self.assertEqual(result.returncode, OK if ok else CHECK_FAILED, result.stdout)
        return json.loads(result.stdout)

    def run_refused(self, checkpoint, *says):
        self.refused(BAD_INPUT, "run", checkpoint, "--layer", 0, "--input", self.tokens(), "--output", self.folder / "o.safetensors", says=says)


class Routing(KnownValues):
    def test_weights_are_used_as_given(self):
        experts = constant_expert("fp8", "layers.0.ffn.experts.0", 1.0, 1.0) | constant_expert("fp8", "layers.0.ffn.experts.1", 2.0, 1.0)
        self.near(self.y(self.model(experts), ids=((0, 1),), weights=((2.5, -0.5),))[0], 2.5 * silu(1) - 0.5 * silu(2))

    def test_dropped_slots_are_zeros(self):
        experts = {}
        for e in range(4):
            experts |= constant_expert("mxfp4", f"layers.0.ffn.experts.{e}", 2.0, 0.5)
        y = self.y(self.model(experts), ids=((-1, 3), (-1, -1)), weights=((0.5, 0.5), (0.5, 0.5)))
        self.near(y[0], 0.5 * silu(2) * 0.5)
        self.assertEqual(struct.pack("<d", y[1]), bytes(8))

    def test_the_scaling_factor_is_applied_once_and_by_the_router_alone(self):
        experts = constant_expert("fp8", "layers.0.ffn.experts.0", 1.0, 1.0) | {"layers.0.ffn.gate.weight": ("BF16", [1, HIDDEN], bf16([0.0] * HIDDEN))}
        checkpoint = self.model(experts, num_experts_per_tok=1, scoring_func="softmax", norm_topk_prob=True, routed_scaling_factor=2.5)
        self.near(self.y(checkpoint)[0], silu(1))
        write_file(self.folder / "routed.safetensors", {"x": ("BF16", [1, HIDDEN], bf16([1 / HIDDEN] * HIDDEN))})
        out = self.run_layer(checkpoint, self.folder / "routed.safetensors")
        self.assertEqual(floats(out["topk_weights"]), [2.5])
        self.near(from_bf16(out["y"][2])[0], 2.5 * silu(1))


class Scales(KnownValues):
    def expert(self, down):
        return {name: tensor for name, tensor in constant_expert("nvfp4", "layers.0.ffn.experts.0", 1.0, 1.0).items() if ".w2." not in name} | down

    def test_subnormal_block_scales(self):
        """0x01, 0x07, 0x08 are 1, 7 and 8 times 2^-9, not what the formula of normal numbers gives."""
        for byte, factor in ((0x01, 1), (0x07, 7), (0x08, 8)):
            down = matrix("nvfp4", "layers.0.ffn.experts.0.w2", HIDDEN, INTERMEDIATE, None, scale_byte=byte, global_scale=512 / INTERMEDIATE)
            self.near(self.y(self.model(self.expert(down), f"e4m3-{byte}"))[0], factor * silu(1))

    def test_e8m0_is_a_power_of_two_at_every_byte(self):
        experts = constant_expert("mxfp4", "layers.0.ffn.experts.0", 1.0, 1.0)
        for byte in (1, 103, 127, 200):
            experts["layers.0.ffn.experts.0.w2.scale"] = ("F8_E8M0", [HIDDEN, INTERMEDIATE // 32], bytes([byte]) * (HIDDEN * INTERMEDIATE // 32))
            self.near(self.y(self.model(experts, f"e8m0-{byte}"))[0], silu(1) * INTERMEDIATE * 2.0**(byte - 127))
        experts["layers.0.ffn.experts.0.w2.scale"] = ("F8_E8M0", [HIDDEN, INTERMEDIATE // 32], bytes(10) + b"\xff" + bytes(HIDDEN * INTERMEDIATE // 32 - 11))
        self.run_refused(self.model(experts, "e8m0-nan"), "layers.0.ffn.experts.0.w2.scale", "NaN scale 255", "row 2, column 2")

    def test_nan_and_negative_block_scales_are_refused_even_over_zeros(self):
        for byte in (0x7F, 0xFF, 0xB8):
            down = matrix("nvfp4", "layers.0.ffn.experts.0.w2", HIDDEN, INTERMEDIATE, 1 / INTERMEDIATE)
            dtype, shape, data = down["layers.0.ffn.experts.0.w2.weight_scale"]
            down["layers.0.ffn.experts.0.w2.weight_scale"] = (dtype, shape, data[:19] + bytes([byte]) + data[20:])
            down["layers.0.ffn.experts.0.w2.weight"] = ("U8", [HIDDEN, INTERMEDIATE // 2], bytes(HIDDEN * INTERMEDIATE // 2))
            checkpoint = self.model(self.expert(down), f"bad-{byte}")
            problems = self.verified(checkpoint, ok=False)["problems"]
            self.assertEqual([problem["tensor"] for problem in problems], ["layers.0.ffn.experts.0.w2.weight_scale"])
            self.assertIn("row 2, column 3", problems[0]["what"])
            self.run_refused(checkpoint, "layers.0.ffn.experts.0.w2.weight_scale", "row 2, column 3")

    def test_every_code_and_minus_zero(self):
        """One row holds each of the 16 codes 8 times: they add up to zero; without the negative half to 8 * 20."""
        for codes, wanted in ((bytes([0x10, 0x32, 0x54, 0x76, 0x98, 0xBA, 0xDC, 0xFE]), 0.0), (bytes([0x10, 0x32, 0x54, 0x76, 0x88, 0x88, 0x88, 0x88]), 8 * 18.0)):
            down = {"layers.0.ffn.experts.0.w2.weight": ("U8", [HIDDEN, INTERMEDIATE // 2], codes * (HIDDEN * INTERMEDIATE // 16)),
                    "layers.0.ffn.experts.0.w2.weight_scale": ("F8_E4M3", [HIDDEN, INTERMEDIATE // 16], b"\x38" * (HIDDEN * INTERMEDIATE // 16)),
                    "layers.0.ffn.experts.0.w2.weight_scale_2": ("F32", [], f32([1.0]))}
            self.near(self.y(self.model(self.expert(down), f"codes-{wanted}"))[0], wanted * silu(1))

    def test_a_reciprocal_global_scale_gives_the_same_bytes(self):
        multiplier, reciprocal = {}, {}
        for name, (dtype, shape, data) in constant_expert("nvfp4", "model.layers.0.mlp.experts.0", 0.25, 0.5, ("gate_proj", "up_proj", "down_proj")).items():
            multiplier[name] = (dtype, shape, data)
            if name.endswith(".weight"):
                reciprocal[name[:-6] + "weight_packed"] = (dtype, shape, data)
            elif name.endswith(".weight_scale_2"):
                reciprocal[name.replace("weight_scale_2", "weight_global_scale")] = (dtype, [1], f32([1 / struct.unpack("<f", data)[0]]))
            else:
                reciprocal[name] = (dtype, shape, data)
        first = self.y(self.model(multiplier, "multiplier"))
        self.assertEqual(first, self.y(self.model(reciprocal, "reciprocal")))
        self.near(first[0], silu(0.25) * 0.5)
        doubtful = multiplier | {"model.layers.0.mlp.experts.0.up_proj.weight_scale_2": ("F32", [], f32([3584.0]))}
        self.assertIn("reciprocal", "\n".join(self.verified(self.model(doubtful, "doubtful"))["notes"]))

    def test_input_scales_are_never_read(self):
        seen = set()
        for number, values in enumerate(([], [1.0], [0.0] * 3, [float("nan")] * 3, [1e-40] * 3)):
            experts = constant_expert("nvfp4", "layers.0.ffn.experts.0", 1.0, 1.0)
            for name, value in zip(("w1", "w3", "w2"), values):
                experts[f"layers.0.ffn.experts.0.{name}.input_scale"] = ("F32", [], f32([value]))
            checkpoint = self.model(experts, f"input-{number}")
            self.verified(checkpoint)
            seen.add(self.run_layer(checkpoint, self.tokens())["y"][2])
        self.assertEqual(len(seen), 1)

    def test_missing_and_impossible_global_scales_are_all_listed(self):
        experts = {}
        for e in range(8):
            experts |= constant_expert("nvfp4", f"layers.0.ffn.experts.{e}", 1.0, 1.0)
        del experts["layers.0.ffn.experts.5.w3.weight_scale_2"]
        del experts["layers.0.ffn.experts.6.w1.weight_scale_2"]
        names = ["layers.0.ffn.experts.5.w3.weight_scale_2", "layers.0.ffn.experts.6.w1.weight_scale_2"]
        self.run_refused(self.model(experts, "missing"), *names)
        self.assertEqual([problem["tensor"] for problem in self.verified(self.model(experts, "missing"), ok=False)["problems"]], names)
        for value in (0.0, float("nan"), float("inf"), -1.0):
            bad = experts | {name: ("F32", [], f32([value])) for name in names}
            self.assertEqual([problem["tensor"] for problem in self.verified(self.model(bad, f"bad-{value}"), ok=False)["problems"]], names)
            self.run_refused(self.model(bad, f"bad-{value}"), *names)


class Fp8(KnownValues):
    def test_a_short_last_block_has_a_scale_of_its_own(self):
        """192 rows are a block of 128 and one of 64: twice 96 would give another mean."""
        experts = constant_expert("fp8", "layers.0.ffn.experts.0", 1.0, 1.0, intermediate=192)
        experts["layers.0.ffn.experts.0.w3.scale"] = ("F32", [2, 2], f32([1.0, 1.0, 4.0, 4.0]))
        checkpoint = self.model(experts)
        self.near(self.y(checkpoint)[0], silu(1) * (128 * 1.0 + 64 * 4.0) / 192)
        experts["layers.0.ffn.experts.0.w3.scale"] = ("F32", [1, 2], f32([1.0, 1.0]))
        self.run_refused(self.model(experts, "wrong"), "layers.0.ffn.experts.0.w3.scale", "[1, 2]", "wanted [2, 2]", "[192, 256]")

    def test_zero_scales_are_zeros_and_nan_is_refused(self):
        experts = constant_expert("fp8", "layers.0.ffn.experts.0", 1.0, 1.0)
        experts["layers.0.ffn.experts.0.w2.scale"] = ("F32", [2, 1], f32([0.0, 0.0]))
        self.assertEqual(self.y(self.model(experts)), [0.0])
        for value in (float("nan"), float("inf"), -1.0):
            bad = experts | {"layers.0.ffn.experts.0.w2.scale": ("F32", [2, 1], f32([1.0, value]))}
            self.run_refused(self.model(bad, f"scale-{value}"), "layers.0.ffn.experts.0.w2.scale", "row 1, column 0")
        for byte in (0x7F, 0xFF):
            codes = bytearray(ONE["fp8"] * (HIDDEN * INTERMEDIATE))
            codes[3 * INTERMEDIATE + 9] = byte
            bad = experts | {"layers.0.ffn.experts.0.w2.weight": ("F8_E4M3", [HIDDEN, INTERMEDIATE], bytes(codes))}
            self.run_refused(self.model(bad, f"code-{byte}"), "layers.0.ffn.experts.0.w2.weight", "row 3, column 9")


class GateAndUp(KnownValues):
    WANTED = silu(2) * 0.5  # exchanged: silu(0.5) * 2 = 0.622459

    def test_both_dialects(self):
        self.near(self.y(self.model(constant_expert("fp8", "layers.0.ffn.experts.0", 2.0, 0.5), "deepseek"))[0], self.WANTED)
        names = ("gate_proj", "up_proj", "down_proj")
        self.near(self.y(self.model(constant_expert("fp8", "model.layers.0.mlp.experts.0", 2.0, 0.5, names), "hugging-face"))[0], self.WANTED)

    def test_fused_tensors_need_a_model_type_that_says_the_order(self):
        both = [2.0] * (INTERMEDIATE // 128) + [0.5] * (INTERMEDIATE // 128)
        fused = {"model.layers.0.mlp.experts.gate_up_proj": ("F8_E4M3", [1, 2 * INTERMEDIATE, HIDDEN], ONE["fp8"] * (2 * INTERMEDIATE * HIDDEN)),
                 "model.layers.0.mlp.experts.gate_up_proj_scale_inv": ("F32", [1, len(both), 2], f32([value for value in both for _ in range(2)])),
                 "model.layers.0.mlp.experts.down_proj": ("F8_E4M3", [1, HIDDEN, INTERMEDIATE], ONE["fp8"] * (HIDDEN * INTERMEDIATE)),
                 "model.layers.0.mlp.experts.down_proj_scale_inv": ("F32", [1, 2, 1], f32([1 / INTERMEDIATE] * 2))}
        self.near(self.y(self.model(fused, "known", model_type="qwen3_moe"))[0], self.WANTED)
        self.run_refused(self.model(fused, "unknown", model_type="gpt_oss"), "gate_up_proj", "order of gate and up", "gpt_oss")

    def test_limits_that_mean_none_and_limits_that_are_wrong(self):
        experts = constant_expert("fp8", "layers.0.ffn.experts.0", 9.0, 8.0)
        free = silu(9) * 8
        for number, config in enumerate(({}, {"swiglu_limit": None}, {"swiglu_limit": 0}, {"swiglu_limit": float("inf")})):
            self.near(self.y(self.model(experts, f"free-{number}", **config))[0], free)
        checkpoint = self.model(experts, "limited", swiglu_limit=7.0)
        self.near(self.y(checkpoint)[0], silu(7) * 7)
        self.near(self.y(checkpoint, "--swiglu-limit", 0)[0], free)
        for number, wrong in enumerate((-1, float("nan"))):
            self.run_refused(self.model(experts, f"wrong-{number}", swiglu_limit=wrong), "swiglu_limit", "wanted a positive number")
        for wrong in ("-1", "nan"):
            self.refused(USAGE, "run", checkpoint, "--layer", 0, "--input", self.tokens(), "--output", self.folder / "o.safetensors", "--swiglu-limit", wrong,
                         says=("--swiglu-limit",))


class Sizes(KnownValues):
    def sparse(self, hidden, intermediate):
        """One MXFP4 expert of holes: all codes zero, scales 2^-127."""
        folder = self.folder / f"s-{hidden}-{intermediate}"
        folder.mkdir(exist_ok=True)
        header, offset = {}, 0
        for name, rows, cols in (("w1", intermediate, hidden), ("w3", intermediate, hidden), ("w2", hidden, intermediate)):
            for part, dtype, shape in (("weight", "U8", [rows, cols // 2]), ("scale", "F8_E8M0", [rows, cols // 32])):
                header[f"layers.0.ffn.experts.0.{name}.{part}"] = {"dtype": dtype, "shape": shape, "data_offsets": [offset, offset + math.prod(shape)]}
                offset += math.prod(shape)
        text = json.dumps(header).encode()
        with (folder / "model.safetensors").open("wb") as file:
            file.write(struct.pack("<Q", len(text)) + text)
            file.truncate(8 + len(text) + offset)
        return folder

    def agree(self, hidden, intermediate, tokens=1):
        """plan and run say the same of a size; returns the rule it breaks, or nothing."""
        plan = self.call("plan", "--hidden", hidden, "--intermediate", intermediate, "--experts", 1, "--topk", 1, "--weights", "mxfp4", "--json")
        report = json.loads(plan.stdout)
        self.assertEqual(plan.returncode, OK if report["legal"] else CHECK_FAILED)
        path = self.folder / "in.safetensors"
        write_file(path, {"x": ("BF16", [tokens, hidden], bytes(2 * tokens * hidden)), "topk_ids": ("I64", [tokens, 1], bytes(8 * tokens)),
                          "topk_weights": ("F32", [tokens, 1], bytes(4 * tokens))})
        arguments = ("run", self.sparse(hidden, intermediate), "--layer", 0, "--input", path, "--output", self.folder / "o.safetensors")
        if not report["legal"]:
            self.refused(BAD_INPUT, *arguments, says=(re.search(r"multiple of \d+", report["rule"]).group(),))
            return report["rule"]
        self.good(*arguments)
        return None

    def test_hidden_sizes_of_models(self):
        for hidden in (2048, 2880, 3072, 4096, 5120, 6144, 7168, 8192):
            rule = self.agree(hidden, 512)
            self.assertEqual(rule, None if hidden != 2880 else "hidden is 2880; it must be a multiple of 128 (nearest: 2816, 2944)")

    def test_intermediate_sizes_of_models_and_of_their_cuts(self):
        for intermediate in (512, 720, 768, 1408, 1536, 2048, 2880, 3072, 192, 96, 64):
            rule = self.agree(1024, intermediate)
            self.assertEqual(rule, None if intermediate != 720 else "intermediate is 720; it must be a multiple of 32 (nearest: 704, 736)")
        # 80 columns fill no group of 32, so no such file can be read; plan names the rule and the nearest sizes.
        result = self.call("plan", "--hidden", 1024, "--intermediate", 80, "--experts", 1, "--topk", 1, "--weights", "mxfp4")
        self.assertEqual(result.returncode, CHECK_FAILED)
        self.assertIn("nearest: 64, 96", result.stdout)

    def test_a_wide_model_with_many_tokens(self):
        self.assertIsNone(self.agree(8192, 64, tokens=1024))


class Reports(KnownValues):
    def test_unknown_tensors_of_experts_are_listed(self):
        experts = constant_expert("fp8", "layers.0.ffn.experts.0", 1.0, 1.0) | {"layers.0.ffn.experts.0.w1.comment": ("U8", [1], b"x")}
        self.assertIn("layers.0.ffn.experts.0.w1.comment", "\n".join(self.verified(self.model(experts))["notes"]))
        for name in ("bias", "weight_shape", "pre_quant_scale"):
            changed = experts | {f"layers.0.ffn.experts.0.w1.{name}": ("F32", [1], f32([1.0]))}
            self.run_refused(self.model(changed, name), f"layers.0.ffn.experts.0.w1.{name}", "model.safetensors", "would change the result", "convert")

    def test_a_layer_that_cannot_run_is_named_with_its_dtype(self):
        f16 = {name: ("F16" if name.endswith("weight") else dtype, shape, data * (2 if name.endswith("weight") else 1))
               for name, (dtype, shape, data) in constant_expert("fp8", "layers.0.ffn.experts.0", 1.0, 1.0).items()}
        checkpoint = self.model(f16, "f16")
        self.run_refused(checkpoint, f"{checkpoint}", "layer 0", "found F16", "wanted F8_E4M3, BF16, or FP4", "convert the checkpoint")

    def test_the_tool_itself_is_never_silent_about_a_missing_file(self):
        checkpoint = self.model(constant_expert("fp8", "layers.0.ffn.experts.0", 1.0, 1.0), "gone")
        Path(checkpoint / "model.safetensors").unlink()
        for command in ("verify", "inspect", "plan"):
            result = self.call(command, checkpoint)
            self.assertNotEqual(result.returncode, OK)
            self.assertIn("no *.safetensors", result.stdout + result.stderr)


if __name__ == "__main__":
    unittest.main()
