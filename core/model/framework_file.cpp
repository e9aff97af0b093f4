#include "core/model/framework.hpp"
#include "core/text/quantity_text.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <utility>

namespace isobar {

namespace {

/// Reads one flag after the other.
class FlagReader {
 public:
  FlagReader(MappingReader& reader, FlagSpelling spelling, bool needs_all)
      : reader_(reader), spelling_(spelling), needs_all_(needs_all)
  {
  }

  template <typename Flag>
  void operator()(const FlagKey& flag, Flag& value)
  {
    const std::string key = key_of(flag, value, spelling_);
    if (reader_.optional(key) == nullptr) {
      if (needs_all_) reader_.add_fault(key, "missing; a system that is like no other one has all flags");
      return;
    }
    read(key, flag, value);
  }

 private:
  void read(const std::string& key, const FlagKey&, bool& value)
  {
    value = reader_.optional_boolean(key).value_or(value);
  }

  void read(const std::string& key, const FlagKey& flag, double& value)
  {
    value = reader_.required_number(key, flag.range.lowest, flag.range.highest);
  }

  void read(const std::string& key, const FlagKey& flag, unsigned& value)
  {
    value = static_cast<unsigned>(reader_.required_count(key, 0, static_cast<std::uint64_t>(flag.range.highest)));
  }

  void read(const std::string& key, const FlagKey& flag, Seconds& value)
  {
    if (spelling_ == FlagSpelling::Json) {
      value = Seconds(reader_.required_number(key, flag.range.lowest, flag.range.highest));
      return;
    }
    const auto text = reader_.optional_text(key);
    if (!text) return;
    try {
      value = seconds_from_text(*text);
    } catch (const std::invalid_argument& fault) {
      reader_.add_fault(key, fault.what());
      return;
    }
    if (value.value <= flag.range.highest) return;
    reader_.add_fault(key, fmt::format("{} is out of range; write a time from {:g} s to {:g} s", in_quotes(*text),
                                       flag.range.lowest, flag.range.highest));
  }

  void read(const std::string& key, const FlagKey& flag, Bytes& value)
  {
    value = spelling_ == FlagSpelling::Json ? Bytes(reader_.required_number(key, flag.range.lowest, flag.range.highest))
                                            : reader_.required_bytes(key);  // no more than the largest size of files
  }

  void read(const std::string& key, const FlagKey&, DType& value)
  {
    value = dtype_from_name(reader_.required_choice(key, dtype_names())).value_or(value);
  }

  void read(const std::string& key, const FlagKey&, Sharding& value)
  {
    value = sharding_from_name(reader_.required_choice(key, sharding_names())).value_or(value);
  }

  MappingReader& reader_;
  FlagSpelling spelling_;
  bool needs_all_;
};

Framework read_framework(MappingReader& entry, const std::vector<Framework>& above)
{
  const auto is_named = [&above](const std::string& name) {
    return std::find_if(above.begin(), above.end(), [&](const Framework& each) { return each.name == name; });
  };
  Framework framework;
  const auto like = entry.optional_text("like");
  if (like) {
    const auto base = is_named(*like);
    if (base == above.end()) {
      entry.add_fault("like",
                      in_quotes(*like) + " is no system above; write the name and version of one: NAME-VERSION");
    } else {
      framework = *base;
    }
  }
  framework.family = entry.required_text("name");
  framework.name = fmt::format("{}-{}", framework.family, entry.required_text("version"));
  if (is_named(framework.name) != above.end())
    entry.add_fault("version", framework.name + " is listed twice; remove one");
  framework.source = entry.required_text("source");
  read_flags(entry, FlagSpelling::Yaml, !like, framework);
  return framework;
}

}  // namespace

std::string key_of(const FlagKey& key, const Seconds&, FlagSpelling spelling)
{
  return std::string(key.text) + (spelling == FlagSpelling::Json ? "_s" : "");
}

std::string key_of(const FlagKey& key, const Bytes&, FlagSpelling spelling)
{
  return std::string(key.text) + (spelling == FlagSpelling::Json ? "_bytes" : "");
}

void read_flags(MappingReader& reader, FlagSpelling spelling, bool needs_all, Framework& framework)
{
  visit_flags(FlagReader(reader, spelling, needs_all), framework);
}

std::optional<TrainingSystem> read_training_system(MappingReader& file, const std::string& key, FlagSpelling spelling,
                                                   FaultList& faults)
{
  using Kind = DocumentNode::Kind;
  const bool is_plan = spelling == FlagSpelling::Json;
  const DocumentNode* const node = file.optional(key);
  if (node == nullptr) return std::nullopt;
  if (node->kind == Kind::Null || node->kind == Kind::Sequence) {
    file.add_fault(key, fmt::format("{}; write a name, or an object of name and flags",
                                    node->kind == Kind::Null ? "has no value" : "is a list"));
    return std::nullopt;
  }
  if (node->kind == Kind::Scalar) {
    const auto name = file.optional_text(key);
    if (!name) return std::nullopt;
    if (is_plan ? name->empty() : standing_for(*name) == nullptr) file.add_fault(key, unknown_framework(*name));
    return TrainingSystem{*name};
  }
  MappingReader reader(*node, file.path_of(key) + ".", faults);
  if (!reader.has("name")) {
    reader.add_fault("name", fmt::format("missing; write one of {}", fmt::join(framework_names(), ", ")));
  }
  const auto name = reader.optional_text("name");
  const auto version = reader.optional_text("version");
  TrainingSystem system{name.value_or("")};
  if (version && !system.name.ends_with("-" + *version)) system.name += "-" + *version;
  const Framework* const named = is_plan ? find_framework(system.name) : standing_for(system.name);
  Framework flags = named != nullptr ? *named : Framework{};
  read_flags(reader, spelling, false, flags);
  reader.refuse_unknown();
  const bool has_flags = reader.keys().size() > (reader.has("version") ? 2U : 1U);
  const bool is_readable = name && version.has_value() == reader.has("version");
  if (named != nullptr) {
    system.changed = flags;
  } else if (is_readable && (!is_plan || name->empty())) {
    reader.add_fault("name", unknown_framework(system.name));
  } else if (is_readable && has_flags) {
    reader.add_fault("name", fmt::format("{} is no training software with flags; write one of {}",
                                         in_quotes(system.name), fmt::join(framework_names(), ", ")));
  }
  return system;
}

FrameworkFile frameworks_from_text(const std::string& text, const std::string& name)
{
  FrameworkFile file;
  FaultList faults(name);
  const DocumentNode document = parse_yaml(text, name);
  MappingReader reader(document, "", faults);
  for (const auto& node : reader.required_sequence("systems")) {
    MappingReader entry(node, fmt::format("systems[{}].", file.frameworks.size()), faults);
    file.frameworks.push_back(read_framework(entry, file.frameworks));
    entry.refuse_unknown();
  }
  if (const auto* node = reader.required("words")) {
    MappingReader words(*node, "words.", faults);
    for (const auto& word : words.keys()) {
      const std::string family = words.required_text(word);
      const bool is_known = std::any_of(file.frameworks.begin(), file.frameworks.end(),
                                        [&](const Framework& each) { return each.family == family; });
      if (!is_known) words.add_fault(word, in_quotes(family) + " is no system; write the name of one above");
      file.words.push_back({word, family});
    }
  }
  reader.refuse_unknown();
  faults.throw_if_any();
  std::sort(file.frameworks.begin(), file.frameworks.end(),
            [](const Framework& a, const Framework& b) { return a.name < b.name; });
  return file;
}

}  // namespace isobar
