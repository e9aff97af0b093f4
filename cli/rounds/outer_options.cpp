#include "cli/rounds/outer_options.hpp"

#include "core/base/command_options.hpp"
#include "core/errors.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <CLI/CLI.hpp>

#include <charconv>

namespace isobar::cli {

void OuterOptions::add_to(CLI::App& command)
{
  command.option_defaults()->group("Rounds");
  auto* outer =
      command.add_option("--outer", steps,
                         "let each site train by itself for this number of steps, and then bring their "
                         "parameters together (DiLoCo); auto chooses, and shows the best plan without rounds");
  add_count(command, "--fragments", fragments, "parts of the parameters that come together one after the other")
      ->needs(outer);
  add_count(command, "--delay", delay, "steps that pass from sending to taking what was sent (default: 0, to wait)")
      ->needs(outer);
  command.add_option("--outer-codec", codec, "what travels: fp32, bf16, int8, int4, \"top-k 0.01\" (default: fp32)")
      ->needs(outer);
  command
      .add_option("--outer-sync", algorithm,
                  fmt::format("how it is summed up: {} (default: ring)", fmt::join(outer_algorithm_names(), ", ")))
      ->needs(outer);
  add_count(command, "--tokens", tokens, "number of tokens to train on: how long they take")->needs(outer);
  auto* factor = command.add_option("--token-factor", token_factor,
                                    "how many times as many tokens rounds need for the loss of training together, as "
                                    "measured elsewhere");
  auto* source = command.add_option("--factor-source", factor_source, "where that was measured, for the report");
  factor->needs(source)->needs("--tokens");
  source->needs(factor);
  command.add_flag("--steps-by-speed", steps_by_speed, "slower sites take fewer steps of a round")->needs(outer);
}

std::optional<std::uint64_t> OuterOptions::number_of_steps() const
{
  if (steps == "auto") return std::nullopt;
  std::uint64_t number = 0;
  const auto [end, error] = std::from_chars(steps.data(), steps.data() + steps.size(), number);
  if (error != std::errc() || end != steps.data() + steps.size() || number < 1 || number > most_inner_steps) {
    throw InputError("--outer", fmt::format("{} is neither auto nor a whole number of steps in 1 to {}",
                                            in_quotes(steps), most_inner_steps));
  }
  return number;
}

std::string OuterOptions::duration_text(double tokens_per_second) const
{
  constexpr double most_factor = 100;
  if (token_factor && (!(*token_factor >= 1) || *token_factor > most_factor)) {
    throw InputError("--token-factor", fmt::format("{} is not in 1 to {}", *token_factor, most_factor));
  }
  if (!tokens) return "";
  constexpr double seconds_of_day = 86'400;
  const double days = static_cast<double>(*tokens) / tokens_per_second / seconds_of_day;
  std::string text = fmt::format("{} tokens take {:.4g} days", *tokens, days);
  if (!token_factor) return text + "; for the loss of training together give --token-factor and its source\n";
  return text + fmt::format("; for the loss of training together {} times as many ({}): {:.4g} days\n", *token_factor,
                            shown(factor_source), *token_factor * days);
}

Outer OuterOptions::outer() const
{
  Outer outer;
  outer.steps = number_of_steps().value_or(outer.steps);
  outer.fragments = fragments.value_or(1);
  outer.delay = delay.value_or(0);
  if (outer.fragments < 1 || outer.fragments > outer.steps) {
    throw InputError("--fragments",
                     fmt::format("{} is not in 1 to {}, the steps of a round", outer.fragments, outer.steps));
  }
  if (outer.delay >= outer.steps) {
    throw InputError("--delay", fmt::format("{} is not below {}, the steps of a round", outer.delay, outer.steps));
  }
  if (codec) {
    try {
      outer.codec = codec_from_text(*codec);
    } catch (const InputError& fault) {
      throw InputError("--outer-codec", fault.what());
    }
  }
  if (algorithm) {
    const auto names = outer_algorithm_names();
    if (std::ranges::find(names, *algorithm) == names.end()) {
      throw InputError("--outer-sync", fmt::format("{} is none of {}", in_quotes(*algorithm), fmt::join(names, ", ")));
    }
    outer.algorithm = algorithm_from_name(*algorithm).value();
  }
  return outer;
}

}  // namespace isobar::cli
