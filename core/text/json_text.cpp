#include "core/text/json_text.hpp"

#include <nlohmann/json.hpp>

namespace isobar {

namespace {

template <typename Json>
std::string text_of_json(const Json& json, int indent)
{
  return json.dump(indent, ' ', false, nlohmann::json::error_handler_t::replace);
}

}  // namespace

std::string json_line(const nlohmann::ordered_json& json)
{
  return text_of_json(json, -1);
}

std::string json_line(const nlohmann::json& json)
{
  return text_of_json(json, -1);
}

std::string json_lines(const nlohmann::ordered_json& json)
{
  return text_of_json(json, 2) + "\n";
}

nlohmann::ordered_json or_null(const std::optional<double>& number)
{
  return number ? nlohmann::ordered_json(*number) : nlohmann::ordered_json(nullptr);
}

nlohmann::ordered_json or_null(const std::optional<Seconds>& time)
{
  return time ? nlohmann::ordered_json(time->value) : nlohmann::ordered_json(nullptr);
}

}  // namespace isobar
