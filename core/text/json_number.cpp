#include "core/text/json_number.hpp"

#include "core/errors.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace isobar {

std::string fault_of_json_number(std::string_view text, std::size_t at)
{
  const auto rest = text.substr(std::min(at, text.size()));
  const auto name = rest.substr(0, rest.find_first_not_of("NaInfity"));
  if (name != "NaN" && name != "Infinity") return "";
  const auto shorten = [](std::string_view begin) { return begin.substr(0, begin.find_last_not_of(" \t\r\n") + 1); };
  auto before = shorten(text.substr(0, at));
  const std::string_view sign = before.ends_with('-') ? "-" : "";
  if (!sign.empty()) before = shorten(before.substr(0, before.size() - 1));
  std::string key;
  if (before.ends_with(':')) {
    before = shorten(before.substr(0, before.size() - 1));
    before = before.substr(0, std::max<std::size_t>(before.size(), 1) - 1);
    key = shown(before.substr(before.rfind('"') + 1)) + ": ";
  }
  return fmt::format("{}{}{} is not a number in JSON; write a finite one", key, sign, name);
}

}  // namespace isobar
