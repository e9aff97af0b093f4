#include "core/compute/calibration.hpp"

#include "core/base/files.hpp"
#include "core/errors.hpp"
#include "core/text/document.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <set>
#include <string_view>
#include <utility>

namespace isobar::compute {

namespace {

constexpr std::string_view calibration_schema = "isobar-calibration/1";
/// Bandwidths of links differ from those of Isobar's constants by no more.
constexpr double largest_link_factor = 100;

/// A flag as a setting has it: every digit, base units.
std::string exact(bool flag)
{
  return flag ? "true" : "false";
}
std::string exact(double flag)
{
  return fmt::format("{}", flag);
}
std::string exact(unsigned flag)
{
  return fmt::format("{}", flag);
}
std::string exact(Seconds flag)
{
  return fmt::format("{} s", flag.value);
}
std::string exact(Bytes flag)
{
  return fmt::format("{} B", flag.value);
}
std::string exact(DType flag)
{
  return std::string(name_of(flag));
}
std::string exact(Sharding flag)
{
  return std::string(name_of(flag));
}

/// A flag as the file has it.
template <typename Flag>
std::string rounded(const Flag& flag)
{
  return exact(flag);
}
std::string rounded(double flag)
{
  return fmt::format("{:.6g}", flag);
}
std::string rounded(Seconds flag)
{
  return fmt::format("{:.6g} us", 1e6 * flag.value);
}

/// A text in double quotes, as YAML reads it.
std::string quoted(const std::string& text)
{
  std::string result = "\"";
  for (const char character : text) {
    if (character == '"' || character == '\\') result += '\\';
    result += character;
  }
  return result + '"';
}

/// The flags that differ from those of the named system: calls visit(key, flag, flag of the named system).
template <typename Visit>
void visit_changes(const Calibration& calibration, Visit visit)
{
  const Framework* const shipped = find_framework(calibration.system.name);
  ensure(shipped != nullptr, "a calibration is of a known training system");
  visit_flags(
      [&](const FlagKey& key, const auto& own, const auto& known) {
        if (!(own == known)) visit(std::string(key.text), own, known);
      },
      calibration.system, *shipped);
}

std::optional<LinkFactors> read_links(MappingReader& file, FaultList& faults)
{
  const DocumentNode* const node = file.optional("links");
  if (node == nullptr) return std::nullopt;
  MappingReader reader(*node, "links.", faults);
  LinkFactors links;
  if (node->kind != DocumentNode::Kind::Mapping) return links;
  for (const auto& [key, factor] : {std::pair("inside", &links.inside), std::pair("outside", &links.outside)}) {
    if (reader.optional(key) != nullptr)
      *factor = reader.required_number(key, 1 / largest_link_factor, largest_link_factor);
  }
  reader.refuse_unknown();
  return links;
}

struct NamedSystem {
  std::string name;
  std::set<std::string> flags;  ///< that the file sets
};
/// The training system of a workload file. Its name is "" if there is none, or if the file is wrong, which its reader
/// reports.
NamedSystem system_named_by(const std::string& file)
{
  const std::string text = read_file(file);
  FaultList faults(file);
  const DocumentNode document = file.ends_with(".json") ? parse_json(text, file) : parse_yaml(text, file);
  if (document.kind != DocumentNode::Kind::Mapping) return {};
  MappingReader reader(document, "", faults);
  const DocumentNode* const own = reader.optional("framework");
  const auto system = read_training_system(reader, "framework", FlagSpelling::Yaml, faults);
  if (!system || !faults.empty()) return {};
  NamedSystem named{system->name, {}};
  for (const auto& member : own->members) named.flags.insert(member.key);
  return named;
}

}  // namespace

Calibration read_calibration(const std::string& file)
{
  FaultList faults(file);
  const DocumentNode document = parse_yaml(read_file(file), file);
  MappingReader reader(document, "", faults);
  reader.required_choice("schema", {std::string(calibration_schema)});
  Calibration calibration;
  calibration.file = file;
  calibration.device = reader.required_text("device");
  if (const auto links = read_links(reader, faults)) calibration.links = *links;
  if (reader.required("framework") != nullptr) {
    if (const auto system = read_training_system(reader, "framework", FlagSpelling::Yaml, faults)) {
      if (const Framework* const named = standing_for(system->name)) {
        calibration.system = system->changed.value_or(*named);
        calibration.system.name = named->name;
      }
    }
  }
  if (reader.optional("rows") != nullptr) {
    for (const auto& row : reader.required_sequence("rows")) {
      if (row.kind != DocumentNode::Kind::Scalar)
        reader.add_fault("rows", "is not a list of names; write [SET/ROW, …]");
      calibration.rows.push_back(row.scalar);
    }
  }
  reader.refuse_unknown();
  faults.throw_if_any();
  return calibration;
}

std::string calibration_to_yaml(const Calibration& calibration)
{
  std::string text =
      "# Training software and links as measured steps show them; isobar calibrate wrote it "
      "(docs/formats/calibration.md).\n";
  text += fmt::format("schema: {}\ndevice: {}\nframework:\n  name: {}\n", calibration_schema,
                      quoted(calibration.device), calibration.system.name);
  visit_changes(calibration, [&](const std::string& key, const auto& own, const auto& known) {
    text += fmt::format("  {:40}# {} as shipped\n", key + ": " + rounded(own), rounded(known));
  });
  if (!(calibration.links == LinkFactors{})) {
    text += fmt::format("links: {{inside: {}, outside: {}}}\n", rounded(calibration.links.inside),
                        rounded(calibration.links.outside));
  }
  if (!calibration.rows.empty()) text += "rows:\n";
  for (const auto& row : calibration.rows) text += fmt::format("  - {}\n", quoted(row));
  return text;
}

WorkloadSettings settings_of(const Calibration& calibration)
{
  WorkloadSettings settings;
  visit_changes(calibration, [&](const std::string& key, const auto& own, const auto&) {
    settings.emplace("framework." + key, exact(own));
  });
  return settings;
}

std::vector<std::string> add_calibration(const Calibration& calibration, const std::string& workload_file,
                                         WorkloadSettings& settings)
{
  const auto refuse = [](const std::string& what) { throw InputError("--system", what); };
  const std::string& system = calibration.system.name;
  if (const auto compute = settings.find("compute"); compute != settings.end() && compute->second != "operators") {
    refuse(fmt::format("{} is for compute: operators; leave --set compute={} out", on_one_line(calibration.file),
                       shown(compute->second)));
  }
  const auto set = settings.find("framework");
  const NamedSystem own = set != settings.end() ? NamedSystem{set->second, {}} : system_named_by(workload_file);
  const std::string& named = own.name;
  const Framework* const known = standing_for(named);
  if (known != nullptr && known->name != system) {
    refuse(fmt::format("{} calibrates {}, and {} has framework {}; calibrate that one, or write --set framework={}",
                       on_one_line(calibration.file), system,
                       set != settings.end() ? "--set" : on_one_line(workload_file), shown(named), system));
  }
  settings.emplace("compute", "operators");
  if (named.empty()) settings.emplace("framework", system);
  std::vector<std::string> replaced;
  for (const auto& [key, value] : settings_of(calibration)) {
    constexpr std::string_view prefix = "framework.";
    const bool is_new = settings.emplace(key, value).second;
    if (is_new && own.flags.contains(key.substr(prefix.size()))) replaced.push_back(key.substr(prefix.size()));
  }
  return replaced;
}

}  // namespace isobar::compute
