#pragma once

#include "core/outer/outer.hpp"

#include <cstdint>
#include <optional>
#include <string>

namespace CLI {
class App;
}

namespace isobar::cli {

/// Options of `plan` for rounds of steps at each site (core/outer/outer.hpp).
struct OuterOptions {
  std::string steps;  ///< of --outer: a number, or auto; "": no rounds
  std::optional<std::uint64_t> fragments;
  std::optional<std::uint64_t> delay;
  std::optional<std::string> codec;
  std::optional<std::string> algorithm;
  bool steps_by_speed = false;
  std::optional<std::uint64_t> tokens;  ///< to say how long they take
  std::optional<double> token_factor;   ///< how many times as many tokens rounds need for the same loss
  std::string factor_source;

  void add_to(CLI::App& command);
  bool are_given() const { return !steps.empty(); }
  /// The number of --outer; none for auto. @throws InputError naming the option.
  std::optional<std::uint64_t> number_of_steps() const;
  /// What the options say, and defaults for the rest. @throws InputError naming the option.
  Outer outer() const;
  /// How long `tokens` take at a rate, in lines; "" without --tokens. @throws InputError naming the option.
  std::string duration_text(double tokens_per_second) const;
};

}  // namespace isobar::cli
