#pragma once

#include <array>
#include <cstdint>
#include <span>

/// What tools/unicode_tables.py makes of Unicode's tables; each in ascending order. For exec/data/unicode.cpp alone.
namespace isobar::exec {

struct CodeRange {
  char32_t first, last;
};
/// Codes first, first + stride, … last fold to themselves + difference.
struct FoldedRun {
  char32_t first, last;
  std::uint32_t stride;
  std::int32_t difference;
};
struct FoldedCode {
  char32_t code, folded;
};
/// Two or three codes; 0 where there is no third.
struct FoldedText {
  char32_t code;
  std::array<char32_t, 3> folded;
};

extern const std::span<const CodeRange> other_codes;        // categories Cc, Cf, Cs, Co, Cn
extern const std::span<const CodeRange> space_codes;        // Zs, Zl, Zp
extern const std::span<const CodeRange> punctuation_codes;  // Pc, Pd, Ps, Pe, Pi, Pf, Po
extern const std::span<const CodeRange> nonspacing_marks;   // Mn
extern const std::span<const FoldedRun> folded_runs;
extern const std::span<const FoldedCode> folded_codes;
extern const std::span<const FoldedText> folded_texts;

}  // namespace isobar::exec
