#pragma once

#include "core/units.hpp"

#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>

namespace isobar {

/// JSON as one line, without its end. Bytes that are not UTF-8 become U+FFFD, here and below.
std::string json_line(const nlohmann::ordered_json& json);
std::string json_line(const nlohmann::json& json);
/// JSON as lines, indented by two, each with its end: a file, or what a command prints.
std::string json_lines(const nlohmann::ordered_json& json);

/// A number, or JSON's null.
nlohmann::ordered_json or_null(const std::optional<double>& number);
/// Seconds, or JSON's null.
nlohmann::ordered_json or_null(const std::optional<Seconds>& time);

}  // namespace isobar
