#!/usr/bin/env python3
"""Tests of sass.py and kernel_budget.py on a listing that is written here, as nvdisasm prints it."""

import os
import sys
import tempfile
import unittest

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

import kernel_budget
import sass

# Two loops in each other, each with HMMAs; a division that is out of every loop, one in the inner loop, whose reciprocal is
# made before it, one by a constant, and one of 64 bits; a branch out of the loop whose code stands after the end and returns.
LISTING = """
        /*0000*/                   IMAD.HI.U32 R6, R12, R7, RZ ;
.L_x_0:
        /*0010*/                   MOV R1, R2 ;
        /*0020*/                   HMMA.16816.F32.BF16 R36, R44.reuse, R40, R24 ;
.L_x_1:
        /*0030*/                   HMMA.16816.F32.BF16 R36, R44.reuse, R40, R24 ;
        /*0040*/                   IMAD.HI.U32 R6, R12.reuse, UR7, RZ ;
        /*0050*/                   IMAD.HI.U32 R7, R9, R7, R8 ;
        /*0060*/                   IMAD.HI R7, R9, 0x66666667, RZ ;
        /*0070*/              @P1 BRA `(.L_x_2) ;
.L_x_3:
        /*0080*/                   CALL.REL.NOINC `($__internal_9_$__cuda_sm20_div_s64) ;
        /*0090*/             @!UP0 BRA `(.L_x_1) ;
        /*00a0*/              @P0 BRA `(.L_x_0) ;
        /*00b0*/                   EXIT ;
.L_x_2:
        /*00c0*/                   MOV R1, R2 ;
        /*00d0*/                   BRA `(.L_x_3) ;
$__internal_9_$__cuda_sm20_div_s64:
        /*00e0*/                   HMMA.16816.F32.BF16 R36, R44.reuse, R40, R24 ;
.L_x_4:
        /*00f0*/                   BRA `(.L_x_4);
"""


def planted():
    code, labels = sass.parse(LISTING.split("\n"))
    return sass.Kernel("Planted<64>", 100, 8, code, sass.find_loops(code, labels))


class KernelBudgetTest(unittest.TestCase):
    def test_loops_own_their_instructions(self):
        loops = planted().loops_with("HMMA")
        # The inner loop: seven instructions and the two that stand after the end. The outer one: three of its own.
        self.assertEqual(sorted(len(loop) for loop in loops), [3, 9])

    def test_figures(self):
        self.assertEqual(kernel_budget.figures_of(planted()),
                         {"registers": 100, "stack": 8, "worst": 9.0, "all": 6.0, "divisions": 2})

    def test_a_quotient_by_a_divisor_is_no_division(self):
        code, _ = sass.parse(["/*0000*/ IMAD.SHL.U32 R9, R9, 0x2, RZ ;", "/*0010*/ IMAD.HI.U32 R9, R9, UR6, RZ ;",
                              "/*0020*/ IMAD.HI.U32 R8, R9, UR6, RZ ;"])
        self.assertEqual([kernel_budget._divides_32(code, i) for i in range(3)], [False, False, True])

    def test_products_of_bytes_count_twice(self):
        for name, count in (("HMMA.16816.F32.BF16", 1), ("HGMMA.64x32x16.F32.BF16", 4), ("IMMA.16832.S8.S8", 2), ("IMAD", 0)):
            self.assertEqual(kernel_budget.products(sass.Instruction("", name, "R0, R4, R2, R0")), count, name)

    def test_names_are_short(self):
        self.assertEqual(sass.short_name("void polysketch::cuda::(anonymous namespace)::Half<16, (bool)1>(int, X<2>)"), "Half<16, 1>")
        self.assertEqual(sass.short_name("void polysketch::cuda::StoreTokens<unsigned short>(polysketch::cuda::A)"),
                         "StoreTokens<Bf16>")

    def test_what_is_above_its_limit_fails_and_says_so(self):
        figures = kernel_budget.figures_of(planted())
        for limits, failed, hinted in (({}, 0, 0), ({"registers": 99}, 1, 0), ({"worst": 9.4}, 0, 0), ({"worst": 10}, 0, 1),
                                       ({"stack": 0, "divisions": 1}, 2, 0)):
            rows = [(0, "cuda", {**figures, **limits}, "Planted<*>")]
            failures, hints = kernel_budget.compare(rows, [figures])
            self.assertEqual((len(failures), len(hints)), (failed, hinted), limits)
        failures, _ = kernel_budget.compare([(0, "cuda", {**figures, "registers": 99}, "Planted<*>")], [figures])
        self.assertEqual(failures, ["Planted<*>: 100 registers a thread, limit 99"])
        self.assertIn("no such kernel", kernel_budget.compare([(0, "cuda", {}, "Gone")], [None])[0][0])

    def test_a_table_is_lowered_and_never_raised(self):
        figures = kernel_budget.figures_of(planted())
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "table.txt")
            with open(path, "w", encoding="utf-8") as file:
                file.write("# words\ncuda 90 10 12 - 2 Planted<6, x>\n")
            rows = kernel_budget.read_table(path)
            self.assertEqual(rows[0][1:], ("cuda", {"registers": 90, "stack": 10, "worst": 12, "divisions": 2}, "Planted<6, x>"))
            kernel_budget.lower(path, rows, [figures])
            self.assertEqual(kernel_budget.read_table(path)[0][2], {"registers": 90, "stack": 8, "worst": 9, "divisions": 2})


if __name__ == "__main__":
    unittest.main()
