#include "results/gate/baseline_meta.hpp"

#include "core/errors.hpp"
#include "core/text/document.hpp"
#include "core/text/json_text.hpp"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <fnmatch.h>
#include <glob.h>
#include <algorithm>
#include <set>

namespace isobar::results {

namespace {

using Json = nlohmann::ordered_json;

constexpr auto schema = "isobar-baseline/1";

/// A list of texts; an empty one is a fault unless `may_be_empty`.
std::vector<std::string> texts_of(MappingReader& reader, const std::string& key, bool may_be_empty)
{
  if (may_be_empty && !reader.has(key)) {
    reader.optional(key);
    return {};
  }
  std::vector<std::string> texts;
  for (const auto& node : reader.required_sequence(key)) {
    if (node.kind != DocumentNode::Kind::Scalar || !node.is_text || node.scalar.empty()) {
      reader.add_fault(key, "holds an entry that is not text; write a list such as [\"a\", \"b\"]");
      return {};
    }
    texts.push_back(node.scalar);
  }
  if (texts.empty() && !may_be_empty && reader.has(key))
    reader.add_fault(key, "is empty, so the grid has no rows; list at least one");
  return texts;
}

std::vector<std::string> some_texts_of(MappingReader& reader, const std::string& key)
{
  return texts_of(reader, key, false);
}

std::vector<std::string> optional_texts_of(MappingReader& reader, const std::string& key)
{
  return texts_of(reader, key, true);
}

void read_grid(const DocumentNode& node, FaultList& faults, BaselineMeta& meta)
{
  MappingReader grid(node, "grid.", faults);
  meta.platforms = some_texts_of(grid, "platforms");
  meta.workloads = some_texts_of(grid, "workloads");
  meta.allocators = some_texts_of(grid, "allocators");
  for (const auto& name : some_texts_of(grid, "objectives")) {
    const auto objective = objective_from_name(name);
    if (objective) {
      meta.objectives.push_back(*objective);
    } else {
      grid.add_fault("objectives",
                     fmt::format("{} is not one of {}", in_quotes(name), fmt::join(objective_names(), ", ")));
    }
  }
  if (const auto name = grid.optional_choice("communication", communication_names())) {
    meta.communication = communication_from_name(*name);
    for (const Objective objective : meta.objectives) {
      if (are_compatible(objective, *meta.communication)) continue;
      grid.add_fault("communication", fmt::format("{} does not go with objective {}", *name, name_of(objective)));
    }
  }
  if (const auto text = grid.optional_text("schedule")) {
    try {
      meta.schedule = schedule_from_text(*text);
    } catch (const InputError& fault) {
      grid.add_fault("schedule", without_place("schedule", fault));
    }
  }
  meta.recompute = grid.optional_text("recompute");
  meta.window = grid.optional_count("window");
  meta.offload = grid.optional_choice("offload", {"auto", "none"});
  meta.microbatches = grid.optional_count("microbatches", 1, most_microbatches_by_recurrence);
  meta.seed = grid.optional_count("seed").value_or(1);
  grid.refuse_unknown();
}

void read_left_out(const std::vector<DocumentNode>& nodes, FaultList& faults, BaselineMeta& meta)
{
  for (std::size_t i = 0; i < nodes.size(); ++i) {
    MappingReader entry(nodes[i], fmt::format("leave_out[{}].", i), faults);
    BaselineMeta::LeftOut left_out;
    left_out.platforms = optional_texts_of(entry, "platforms");
    left_out.workloads = optional_texts_of(entry, "workloads");
    left_out.allocators = optional_texts_of(entry, "allocators");
    left_out.objectives = optional_texts_of(entry, "objectives");
    left_out.because = entry.required_text("because");
    left_out.line = entry.line();
    entry.refuse_unknown();
    meta.left_out.push_back(std::move(left_out));
  }
}

/// A mapping from allocators of the grid to numbers.
template <typename Number, typename Read>
void read_by_allocator(MappingReader& document, const std::string& key, FaultList& faults, const BaselineMeta& meta,
                       std::map<std::string, Number>& numbers, Read read)
{
  const DocumentNode* node = document.optional(key);
  if (node == nullptr) return;
  MappingReader reader(*node, key + ".", faults);
  for (const auto& allocator : reader.keys()) {
    numbers[allocator] = read(reader, allocator);
    if (std::find(meta.allocators.begin(), meta.allocators.end(), allocator) == meta.allocators.end()) {
      reader.add_fault(allocator, "is not in grid.allocators");
    }
  }
}

Provenance read_provenance(const DocumentNode& node, FaultList& faults)
{
  Provenance approved;
  MappingReader reader(node, "approved.", faults);
  approved.isobar_version = reader.required_text("isobar_version");
  approved.simgrid_version = reader.required_text("simgrid_version");
  approved.cbc_version = reader.optional_text("cbc_version");
  if (const DocumentNode* network = reader.required("network")) {
    MappingReader options(*network, "approved.network.", faults);
    for (const auto& option : options.keys()) approved.network.emplace_back(option, options.required_text(option));
  }
  if (const DocumentNode* inputs = reader.required("inputs")) {
    MappingReader files(*inputs, "approved.inputs.", faults);
    for (const auto& file : files.keys()) approved.inputs[file] = files.required_text(file);
  }
  reader.refuse_unknown();
  return approved;
}

/// Existing files, sorted, each once.
std::set<std::string> files_of(const std::vector<std::string>& patterns, const std::string& where)
{
  std::set<std::string> files;
  for (const auto& pattern : patterns) {
    glob_t found{};
    const int status = glob(pattern.c_str(), 0, nullptr, &found);
    for (std::size_t i = 0; status == 0 && i < found.gl_pathc; ++i) files.insert(found.gl_pathv[i]);
    globfree(&found);
    if (status != 0) {
      throw InputError(where, in_quotes(pattern) + ": no such file; names are read from the working folder");
    }
  }
  return files;
}

/// Whether a pattern matches; an empty list matches all names.
bool matches(const std::vector<std::string>& patterns, std::string_view name)
{
  return patterns.empty() || std::any_of(patterns.begin(), patterns.end(), [&](const std::string& pattern) {
           return fnmatch(pattern.c_str(), std::string(name).c_str(), 0) == 0;
         });
}

bool leaves_out(const BaselineMeta::LeftOut& entry, const ComparisonRow& row)
{
  return matches(entry.platforms, row.platform) && matches(entry.workloads, row.workload) &&
         matches(entry.allocators, row.allocator) && matches(entry.objectives, name_of(row.goal.objective));
}

Json object_of(const auto& entries)
{
  Json object = Json::object();
  for (const auto& [key, value] : entries) object[key] = value;
  return object;
}

void add_approved(const BaselineMeta& meta, Json& document)
{
  if (!meta.approved) return;
  Json approved = {{"isobar_version", meta.approved->isobar_version},
                   {"simgrid_version", meta.approved->simgrid_version}};
  if (meta.approved->cbc_version) approved["cbc_version"] = *meta.approved->cbc_version;
  approved["network"] = object_of(meta.approved->network);
  approved["inputs"] = object_of(meta.approved->inputs);
  document["approved"] = std::move(approved);
}

}  // namespace

std::vector<ComparisonRow> BaselineMeta::rows(const SetDefaults& set_defaults) const
{
  std::vector<ComparisonRow> rows;
  std::vector<bool> is_used(left_out.size());
  const auto workload_files = files_of(workloads, name + ": grid.workloads");
  const std::set<std::string> distinct_allocators(allocators.begin(), allocators.end());
  for (const auto& platform : files_of(platforms, name + ": grid.platforms")) {
    for (const auto& workload : workload_files) {
      for (const auto& allocator : distinct_allocators) {
        for (const auto objective : std::set<Objective>(objectives.begin(), objectives.end())) {
          ComparisonRow row;
          row.platform = platform;
          row.workload = workload;
          row.allocator = allocator;
          row.goal.objective = objective;
          set_defaults(row);
          row.goal.communication = communication.value_or(row.goal.communication);
          row.goal.schedule = schedule.value_or(row.goal.schedule);
          row.goal.microbatches = microbatches.value_or(row.goal.microbatches);
          row.recompute = recompute.value_or(row.recompute);
          row.seed = seed;
          bool is_left_out = false;
          for (std::size_t i = 0; i < left_out.size(); ++i) {
            if (!leaves_out(left_out[i], row)) continue;
            is_used[i] = true;
            is_left_out = true;
          }
          if (!is_left_out) rows.push_back(std::move(row));
        }
      }
    }
  }
  for (std::size_t i = 0; i < left_out.size(); ++i) {
    if (is_used[i]) continue;
    throw InputError(fmt::format("{}:{}: leave_out[{}]", name, left_out[i].line, i),
                     "matches no row of the grid; correct its patterns or delete it");
  }
  std::sort(rows.begin(), rows.end(), [](const auto& a, const auto& b) { return key_of(a) < key_of(b); });
  return rows;
}

BaselineMeta baseline_meta_from_json(const std::string& text, const std::string& name)
{
  const DocumentNode root = parse_json(text, name);
  FaultList faults(name);
  BaselineMeta meta;
  meta.name = name;
  MappingReader document(root, "", faults);
  document.required_choice("schema", {schema});
  if (document.has("sweep")) {
    meta.sweep = document.required_text("sweep");
    if (const DocumentNode* approved = document.optional("approved"))
      meta.approved = read_provenance(*approved, faults);
    document.refuse_unknown();
    faults.throw_if_any();
    return meta;
  }
  if (const DocumentNode* grid = document.required("grid")) read_grid(*grid, faults, meta);
  read_by_allocator(document, "budgets", faults, meta, meta.budgets,
                    [](MappingReader& reader, const std::string& key) { return reader.required_count(key); });
  read_by_allocator(document, "simulate", faults, meta, meta.simulate,
                    [](MappingReader& reader, const std::string& key) { return reader.required_count(key); });
  if (document.has("leave_out")) read_left_out(document.required_sequence("leave_out"), faults, meta);
  read_by_allocator(document, "plan_time_limits", faults, meta, meta.plan_time_limits,
                    [](MappingReader& reader, const std::string& key) { return reader.required_number(key); });
  if (!meta.plan_time_limits.empty() &&
      std::find(meta.allocators.begin(), meta.allocators.end(), "even") == meta.allocators.end()) {
    document.add_fault("plan_time_limits", "are relative to the plan time of even; add even to grid.allocators");
  }
  if (const DocumentNode* approved = document.optional("approved")) meta.approved = read_provenance(*approved, faults);
  document.refuse_unknown();
  faults.throw_if_any();
  return meta;
}

std::string baseline_meta_to_json(const BaselineMeta& meta)
{
  if (!meta.sweep.empty()) {
    Json document = {{"schema", schema}, {"sweep", meta.sweep}};
    add_approved(meta, document);
    return json_lines(document);
  }
  Json grid = {{"platforms", meta.platforms}, {"workloads", meta.workloads}, {"allocators", meta.allocators}};
  grid["objectives"] = Json::array();
  for (const auto objective : meta.objectives) grid["objectives"].push_back(name_of(objective));
  if (meta.communication) grid["communication"] = name_of(*meta.communication);
  if (meta.schedule) grid["schedule"] = text_of(*meta.schedule);
  if (meta.microbatches) grid["microbatches"] = *meta.microbatches;
  if (meta.recompute) grid["recompute"] = *meta.recompute;
  if (meta.window) grid["window"] = *meta.window;
  if (meta.offload) grid["offload"] = *meta.offload;
  if (meta.seed != 1) grid["seed"] = meta.seed;
  Json document = {{"schema", schema}, {"grid", std::move(grid)}};
  if (!meta.budgets.empty()) document["budgets"] = object_of(meta.budgets);
  if (!meta.simulate.empty()) document["simulate"] = object_of(meta.simulate);
  for (const auto& left_out : meta.left_out) {
    Json entry = Json::object();
    const auto add = [&entry](const char* key, const std::vector<std::string>& patterns) {
      if (!patterns.empty()) entry[key] = patterns;
    };
    add("platforms", left_out.platforms);
    add("workloads", left_out.workloads);
    add("allocators", left_out.allocators);
    add("objectives", left_out.objectives);
    entry["because"] = left_out.because;
    document["leave_out"].push_back(std::move(entry));
  }
  if (!meta.plan_time_limits.empty()) document["plan_time_limits"] = object_of(meta.plan_time_limits);
  add_approved(meta, document);
  return json_lines(document);
}

std::vector<std::string> reasons_not_to_compare(const Provenance& approved, const Provenance& now)
{
  std::vector<std::string> reasons;
  const auto compare = [&reasons](const std::string& key, const std::string& was, const std::string& is) {
    if (was == is) return;
    reasons.push_back(fmt::format("approved.{}: the rows were made with {}; this is {}", key, shown(was), shown(is)));
  };
  compare("simgrid_version", approved.simgrid_version, now.simgrid_version);
  compare("cbc_version", approved.cbc_version.value_or("none"), now.cbc_version.value_or("none"));
  const std::map<std::string, std::string> was(approved.network.begin(), approved.network.end());
  const std::map<std::string, std::string> is(now.network.begin(), now.network.end());
  std::map<std::string, std::string> all = was;
  all.insert(is.begin(), is.end());
  const auto value_in = [](const auto& options, const std::string& option) {
    const auto found = options.find(option);
    return found == options.end() ? std::string("none") : found->second;
  };
  for (const auto& [option, value] : all) compare("network." + option, value_in(was, option), value_in(is, option));
  return reasons;
}

std::vector<std::string> changed_inputs(const Provenance& approved, const Provenance& now)
{
  std::vector<std::string> lines;
  for (const auto& [file, hash] : now.inputs) {
    const auto was = approved.inputs.find(file);
    if (was != approved.inputs.end() && was->second != hash) {
      lines.push_back(file + ": has changed since the rows were approved");
    }
  }
  return lines;
}

}  // namespace isobar::results
