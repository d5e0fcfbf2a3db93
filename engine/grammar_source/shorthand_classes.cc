#include "engine/grammar_source/shorthand_classes.h"

namespace polysketch {

const TwoSided& DigitClass() {
  // No decimal digits of Unicode lie in `out`: those of other scripts begin at U+0660, and none is
  // among punctuation, CJK, Hangul and most emoji.
  static const TwoSided kClass = {{{'0', '9'}},
                                  {{0, '0' - 1},
                                   {'9' + 1, 0x65f},
                                   {0x2000, 0xa61f},
                                   {0xac00, 0xd7a3},
                                   {0xf900, 0xff0f},
                                   {0x1f000, 0x1fbef}}};
  return kClass;
}

const TwoSided& WordClass() {
  // `out`: blocks of punctuation and symbols without letters, marks and numbers.
  static const TwoSided kClass = {
      {{'0', '9'}, {'A', 'Z'}, {'_', '_'}, {'a', 'z'}},
      {{0, '0' - 1},      {'9' + 1, 'A' - 1}, {'Z' + 1, '_' - 1}, {'`', '`'},
       {'z' + 1, 0xa9},   {0xab, 0xb1},       {0xb4, 0xb4},       {0xb6, 0xb8},
       {0xbb, 0xbb},      {0xbf, 0xbf},       {0xd7, 0xd7},       {0xf7, 0xf7},
       {0x2000, 0x206f},  {0x20a0, 0x20c0},   {0x2190, 0x2426},   {0x2500, 0x2775},
       {0x2794, 0x2bff},  {0x3000, 0x3004},   {0x3008, 0x3020},   {0xfe50, 0xfe52},
       {0xff01, 0xff0f},  {0xff1a, 0xff20},   {0x1f300, 0x1f64f}, {0x1f680, 0x1f6d7},
       {0x1f900, 0x1f9ff}}};
  return kClass;
}

const TwoSided& SpaceClass() {
  // Python's \s has 1c to 1f and 85 besides, ECMA's U+FEFF.
  static const TwoSided kClass = {{{'\t', '\r'},
                                   {' ', ' '},
                                   {0xa0, 0xa0},
                                   {0x1680, 0x1680},
                                   {0x2000, 0x200a},
                                   {0x2028, 0x2029},
                                   {0x202f, 0x202f},
                                   {0x205f, 0x205f},
                                   {0x3000, 0x3000}},
                                  CodePoints({{'\t', '\r'},
                                              {0x1c, 0x20},
                                              {0x85, 0x85},
                                              {0xa0, 0xa0},
                                              {0x1680, 0x1680},
                                              {0x2000, 0x200a},
                                              {0x2028, 0x2029},
                                              {0x202f, 0x202f},
                                              {0x205f, 0x205f},
                                              {0x3000, 0x3000},
                                              {0xfeff, 0xfeff}})
                                      .Complement()};
  return kClass;
}

const TwoSided& LineClass() {
  // ECMA's `.` excludes four ends of lines, Python's the first alone.
  static const TwoSided kClass = {
      CodePoints({{'\n', '\n'}, {'\r', '\r'}, {0x2028, 0x2029}}).Complement(), {{'\n', '\n'}}};
  return kClass;
}

}  // namespace polysketch
