#include "core/compute/measurements.hpp"

#include "core/base/files.hpp"
#include "core/cluster/device_types.hpp"
#include "core/compute/measured_operators.hpp"

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <string_view>

namespace isobar::compute {

namespace {

std::vector<std::string> words_of(std::string_view name)
{
  std::vector<std::string> words;
  while (true) {
    const auto end = name.find('-');
    words.emplace_back(name.substr(0, end));
    if (end == std::string_view::npos) return words;
    name.remove_prefix(end + 1);
  }
}

/// Whether a word is short for another: "GH" for "GH200" and "96" for "96GB", but "A10" not for "A100".
bool is_short_for(const std::string& word, const std::string& whole)
{
  const auto is_digit = [](char character) { return std::isdigit(static_cast<unsigned char>(character)) != 0; };
  if (word.empty() || !whole.starts_with(word)) return false;
  return word.size() == whole.size() || !is_digit(word.back()) || !is_digit(whole[word.size()]);
}

/// The device in the name of a profile's file: that of OPT-350_A100-40.json is A100-40.
std::string named_device(const std::string& file)
{
  const std::string stem = std::filesystem::path(file).stem().string();
  return stem.substr(stem.rfind('_') + 1);
}

/// Whether the file of a profile is of a device type: OPT-350_A100-40.json is of an A100 with 40 GB. Sailor's names are
/// short for words of a type's name.
bool is_of_type(const std::string& file, const std::string& type)
{
  const DeviceType* const known = find_device_type(type);
  const auto words = words_of(known == nullptr ? type : known->name);
  return std::ranges::all_of(words_of(named_device(file)), [&](const std::string& word) {
    return std::ranges::any_of(words, [&](const std::string& whole) { return is_short_for(word, whole); });
  });
}

}  // namespace

Measurements::Measurements(const std::vector<std::string>& files)
{
  for (const auto& file : files) {
    const std::string text = read_file(file);
    if (is_operator_table(text)) {
      tables_.push_back({file, operator_table_from_json(text, file)});
    } else if (file.ends_with("_sizes.json")) {
      sizes_ = sailor_sizes_from_json(text, file);
    } else {
      layers_.push_back(sailor_profile_from_json(text, file));
      const std::filesystem::path path(file);
      const std::string stem = path.stem().string();
      const auto beside = path.parent_path() / (stem.substr(0, stem.rfind('_')) + "_sizes.json");
      if (!sizes_ && std::filesystem::exists(beside)) sizes_ = read_sailor_sizes(beside);
    }
  }
}

const SailorProfile* Measurements::layers_of(const std::string& type) const
{
  const auto found = std::ranges::find_if(layers_, [&](const auto& profile) { return is_of_type(profile.name, type); });
  return found == layers_.end() ? nullptr : &*found;
}

const OperatorTable* Measurements::table_of(const std::string& type) const
{
  const auto found =
      std::ranges::find_if(tables_, [&](const Table& each) { return is_same_device_type(each.table.device, type); });
  return found == tables_.end() ? nullptr : &found->table;
}

const OperatorTable* Measurements::operators_of(const std::string& type, DType dtype) const
{
  if (const auto* table = table_of(type)) return table;
  return measured_operators(constants_of(type).type, dtype);
}

DeviceConstants Measurements::constants_of(const std::string& type) const
{
  const auto* table = table_of(type);
  return table != nullptr ? compute::constants_of(*table) : device_constants(type);
}

std::vector<Measurements::Measured> Measurements::of_others(const std::vector<std::string>& types) const
{
  std::vector<Measured> others;
  for (const auto& profile : layers_) {
    const auto fits = [&](const std::string& type) { return is_of_type(profile.name, type); };
    if (std::ranges::none_of(types, fits)) others.push_back({profile.name, named_device(profile.name)});
  }
  for (const auto& [file, table] : tables_) {
    const auto fits = [&, of = table.device](const std::string& type) { return is_same_device_type(of, type); };
    if (std::ranges::none_of(types, fits)) others.push_back({file, table.device});
  }
  return others;
}

}  // namespace isobar::compute
