#include "core/huggingface/config_reader.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

namespace isobar {

bool ConfigReader::has_value(const std::string& key)
{
  const auto* node = config_.optional(key);
  return node != nullptr && node->kind != DocumentNode::Kind::Null;
}

std::string ConfigReader::named(const std::string& key, const std::string& alias)
{
  if (!has_value(alias)) return key;
  if (has_value(key) && config_.optional(key)->scalar != config_.optional(alias)->scalar) {
    add_fault(alias, fmt::format("{} is not {}, {}; leave one of them out", config_.optional(alias)->scalar, key,
                                 config_.optional(key)->scalar));
  }
  return alias;
}

std::size_t ConfigReader::member_count(const std::string& key)
{
  const auto* node = config_.optional(key);
  if (node->kind != DocumentNode::Kind::Mapping) add_fault(key, "is not a mapping");
  return node->members.size();
}

ConfigReader ConfigReader::mapping(const std::string& key)
{
  return {*config_.optional(key), config_.path_of(key) + ".", use_, *remarks_, *faults_};
}

std::vector<std::string> ConfigReader::texts(const std::string& key)
{
  std::vector<std::string> found;
  for (const auto& item : config_.optional(key)->items) found.push_back(item.scalar);
  return found;
}

std::uint64_t ConfigReader::count(const std::string& key, std::uint64_t highest, std::uint64_t default_value)
{
  return has_value(key) ? config_.required_count(key, 1, highest) : default_value;
}

std::uint64_t ConfigReader::whole(const std::string& key, std::uint64_t highest, std::uint64_t default_value)
{
  return has_value(key) ? config_.required_count(key, 0, highest) : default_value;
}

std::uint64_t ConfigReader::size(const std::string& key, std::uint64_t highest, std::uint64_t default_value)
{
  if (!has_value(key)) remarks_->defaults.push_back(fmt::format("{} {}", key, default_value));
  return count(key, highest, default_value);
}

double ConfigReader::number(const std::string& key, double default_value)
{
  return config_.optional_number(key).value_or(default_value);
}

bool ConfigReader::boolean(const std::string& key, bool default_value)
{
  return has_value(key) ? config_.optional_boolean(key).value_or(default_value) : default_value;
}

bool ConfigReader::choice(const std::string& key, bool default_value)
{
  if (!has_value(key)) remarks_->defaults.push_back(fmt::format("{} {}", key, default_value));
  return boolean(key, default_value);
}

std::string ConfigReader::text(const std::string& key, const std::string& default_value)
{
  return has_value(key) ? config_.optional_text(key).value_or(default_value) : default_value;
}

std::string ConfigReader::supported_name(const std::string& key, const std::vector<std::string>& supported)
{
  std::string name = config_.required_text(key);
  const bool is_missing = name.empty() && !is_right_so_far();  // which is a fault already
  if (!is_missing && std::find(supported.begin(), supported.end(), name) == supported.end()) {
    add_fault(key, fmt::format("{} is not supported (only {})", in_quotes(name), fmt::join(supported, ", ")));
  }
  return name;
}

std::string ConfigReader::stated(const std::string& key, std::uint64_t value)
{
  return fmt::format("{}{}", value, has_value(key) ? "" : " (transformers' default)");
}

void ConfigReader::accept_text(const std::string& key, const std::vector<std::string>& exact,
                               const std::vector<std::string>& alike)
{
  const std::string value = text(key, exact.front());
  const auto has = [](const std::vector<std::string>& values, const std::string& wanted) {
    return std::find(values.begin(), values.end(), wanted) != values.end();
  };
  if (has(exact, value)) return;
  auto supported = exact;
  for (const auto& other : alike) {
    if (use_ == ConfigUse::Costs && !has(exact, other)) supported.push_back(other);
  }
  if (has(supported, value)) {
    add_difference(key, value, exact.front());
  } else {
    add_fault(key, fmt::format("{} is not supported (only {})", in_quotes(value), fmt::join(supported, ", ")));
  }
}

void ConfigReader::accept_number(const std::string& key, double exact)
{
  const double value = number(key, exact);
  if (value == exact) return;
  if (use_ == ConfigUse::Costs) {
    add_difference(key, fmt::format("{}", value), fmt::format("{}", exact));
  } else {
    add_fault(key, fmt::format("{} is not supported (only {})", value, exact));
  }
}

void ConfigReader::accept_boolean(const std::string& key, bool exact)
{
  if (use_ == ConfigUse::Weights) return demand_boolean(key, exact);
  if (boolean(key, exact) != exact) add_difference(key, fmt::format("{}", !exact), fmt::format("{}", exact));
}

void ConfigReader::demand_boolean(const std::string& key, bool supported)
{
  if (boolean(key, supported) == supported) return;
  add_fault(key, fmt::format("{} is not supported (only {})", !supported, supported));
}

void ConfigReader::demand_number(const std::string& key, double supported, double default_value)
{
  const double value = number(key, default_value);
  if (value != supported) add_fault(key, fmt::format("{} is not supported (only {})", value, supported));
}

void ConfigReader::demand_parts(const std::string& key, std::uint64_t parts, const std::string& of, std::uint64_t whole)
{
  if (is_right_so_far() && whole % parts != 0) {
    add_fault(key, fmt::format("{} does not divide {}, {}", stated(key, parts), of, stated(of, whole)));
  }
}

void ConfigReader::demand_positions(const std::string& key, std::uint64_t positions, std::uint64_t sequence)
{
  if (!is_right_so_far() || sequence <= positions) return;
  add_fault(key, fmt::format("{} is less than the sequence of {}; give a shorter --sequence", stated(key, positions),
                             sequence));
}

void ConfigReader::demand_nothing(const std::string& key, const std::string& meaning)
{
  const auto* node = config_.optional(key);
  if (node == nullptr || (node->items.empty() && node->members.empty() && node->scalar.empty())) return;
  if (!node->is_text && (node->scalar == "false" || node->scalar == "0")) return;
  add_fault(key, fmt::format("requires {}, which is not supported; remove it", meaning));
}

void ConfigReader::add_difference(const std::string& key, const std::string& value, const std::string& exact)
{
  remarks_->differences.push_back(fmt::format("{} {}, not {}", config_.path_of(key), value, exact));
}

}  // namespace isobar
