#include "core/base/files.hpp"
#include "core/errors.hpp"
#include "core/jobs/grouping.hpp"
#include "core/jobs/trace_numbers.hpp"
#include "core/names.hpp"
#include "core/text/csv_table.hpp"
#include "core/text/document.hpp"
#include "core/text/json_text.hpp"
#include "core/text/quantity_text.hpp"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <map>

namespace isobar {

namespace {

using Json = nlohmann::ordered_json;

constexpr auto groups_schema = "isobar-groups/1";
constexpr NameTable<GroupSize, 3> size_names = {
    {{GroupSize::Pairs, "pairs"}, {GroupSize::Triples, "triples"}, {GroupSize::Auto, "auto"}}};
constexpr std::size_t most_devices = 1'000'000;
constexpr std::size_t most_faults_of_places = 20;

/// What is wrong with the times of a step; "" if nothing is.
std::string fault_of_step(const JobStepTimes& step)
{
  if (step.alone <= Seconds(0)) return "takes no time";
  for (std::size_t i = 0; i < step.busy.size(); ++i) {
    if (step.busy[i] > step.alone) {
      return fmt::format("{}_s is {}, more than alone_s, {}", step_resources[i], step.busy[i].value, step.alone.value);
    }
  }
  return "";
}

/// A row of a table of jobs.
class ProfileRow {
 public:
  ProfileRow(const CsvTable& table, const CsvTable::Row& row, FaultList& faults)
      : table_(&table), row_(&row), faults_(&faults)
  {
  }

  std::string cell(const std::string& column) const
  {
    const auto& columns = table_->columns();
    return row_->cells[static_cast<std::size_t>(std::ranges::find(columns, column) - columns.begin())];
  }
  std::uint64_t count(const std::string& column, std::uint64_t highest)
  {
    const auto found = count_in(cell(column));
    if (found && *found >= 1 && *found <= highest) return *found;
    add_fault(column, fmt::format("{} is not a whole number from 1 to {}", in_quotes(cell(column)), highest));
    return 1;
  }
  double number(const std::string& column)
  {
    if (const auto found = number_in(cell(column))) return *found;
    add_fault(column, fmt::format("{} is not a number of 0 or more", in_quotes(cell(column))));
    return 0;
  }
  std::optional<double> optional_number(const std::string& column)
  {
    return cell(column).empty() ? std::nullopt : std::optional(number(column));
  }
  void add_fault(const std::string& column, const std::string& what)
  {
    is_right_ = false;
    faults_->add(row_->line, column, what);
  }
  bool is_right() const { return is_right_; }

 private:
  const CsvTable* table_;
  const CsvTable::Row* row_;
  FaultList* faults_;
  bool is_right_ = true;
};

/// Reads groupings; names stand for jobs.
class GroupingReader {
 public:
  explicit GroupingReader(const std::filesystem::path& file) : file_(file), faults_(file.string()) {}

  Grouping read()
  {
    const DocumentNode document = parse_json(read_file(file_), file_.string());
    MappingReader reader(document, "", faults_);
    reader.required_choice("schema", {groups_schema});
    const auto size = reader.required_choice("group", group_size_names());
    grouping_.size = group_size_from_name(size).value_or(GroupSize::Pairs);
    grouping_.at_once = reader.optional_boolean("at_once").value_or(false);
    if (const auto memory = reader.optional_number("memory_bytes")) grouping_.memory = Bytes(*memory);
    grouping_.total = Seconds(reader.required_number("total_s"));
    grouping_.serial = Seconds(reader.required_number("serial_s"));
    grouping_.longest = Seconds(reader.required_number("longest_round_s"));
    grouping_.bound = Seconds(reader.required_number("bound_s"));
    const auto& jobs = reader.required_sequence("jobs");
    if (jobs.size() > most_grouped_jobs) {
      reader.add_fault("jobs", fmt::format("has {}; at most {} are grouped", jobs.size(), most_grouped_jobs));
    }
    for (std::size_t i = 0; i < std::min(jobs.size(), most_grouped_jobs); ++i) add_job(jobs[i], i);
    const auto& groups = reader.required_sequence("groups");
    for (std::size_t i = 0; i < groups.size(); ++i) add_group(groups[i], fmt::format("groups[{}].", i));
    const auto& proofs = reader.required_sequence("certificates");
    for (std::size_t i = 0; i < proofs.size(); ++i) add_proof(proofs[i], fmt::format("certificates[{}].", i));
    const auto& baselines = reader.required_sequence("baselines");
    for (std::size_t i = 0; i < baselines.size(); ++i) {
      MappingReader baseline(baselines[i], fmt::format("baselines[{}].", i), faults_);
      grouping_.baselines.push_back({baseline.required_text("rule"), Seconds(baseline.required_number("total_s")),
                                     Seconds(baseline.required_number("longest_round_s"))});
      baseline.refuse_unknown();
    }
    reader.refuse_unknown();
    faults_.throw_if_any();
    return std::move(grouping_);
  }

 private:
  void add_job(const DocumentNode& node, std::size_t index)
  {
    MappingReader reader(node, fmt::format("jobs[{}].", index), faults_);
    JobProfile job;
    job.name = reader.required_text("name");
    if (!place_of_.emplace(job.name, index).second) {
      reader.add_fault("name", in_quotes(job.name) + " is the name of another job too; give each its own");
    }
    job.steps = reader.required_count("steps", 1);
    job.devices = reader.required_count("devices", 1, most_devices);
    job.step.alone = Seconds(reader.required_number("alone_s"));
    for (std::size_t i = 0; i < step_resources.size(); ++i) {
      job.step.busy[i] = Seconds(reader.required_number(fmt::format("{}_s", step_resources[i])));
    }
    job.resident = Bytes(reader.required_number("memory_bytes"));
    job.activations = Bytes(reader.required_number("activations_bytes"));
    if (const auto fault = fault_of_step(job.step); !fault.empty() && reader.has("alone_s")) {
      reader.add_fault("alone_s", fault);
    }
    reader.refuse_unknown();
    number_in_set_.push_back(sizes_[job.devices]++);
    grouping_.jobs.push_back(std::move(job));
  }

  /// The jobs that a list names; none that is unknown.
  std::vector<std::size_t> jobs_in(MappingReader& reader, const std::string& key)
  {
    std::vector<std::size_t> found;
    for (const auto& node : reader.required_sequence(key)) {
      const auto place = node.kind == DocumentNode::Kind::Scalar ? place_of_.find(node.scalar) : place_of_.end();
      if (place == place_of_.end()) {
        if (++unknown_ <= most_faults_of_places) {
          faults_.add(node.line, reader.path_of(key), in_quotes(node.scalar) + " is the name of no job");
        }
        continue;
      }
      found.push_back(place->second);
    }
    return found;
  }

  void add_group(const DocumentNode& node, const std::string& path)
  {
    MappingReader reader(node, path, faults_);
    grouping_.groups.push_back({jobs_in(reader, "jobs"), Seconds(reader.required_number("round_s")),
                                Seconds(reader.required_number("time_s"))});
    reader.refuse_unknown();
  }

  /// Their places among the jobs with these devices.
  std::vector<std::size_t> members_in(MappingReader& reader, const std::string& key, std::size_t devices)
  {
    std::vector<std::size_t> members;
    for (const std::size_t job : jobs_in(reader, key)) {
      if (grouping_.jobs[job].devices != devices) {
        reader.add_fault(key, fmt::format("{} has another number of devices", in_quotes(grouping_.jobs[job].name)));
      }
      members.push_back(number_in_set_[job]);
    }
    return members;
  }

  void add_proof(const DocumentNode& node, const std::string& path)
  {
    MappingReader reader(node, path, faults_);
    PairingProof proof;
    proof.devices = reader.required_count("devices", 1, most_devices);
    proof.unit = Seconds(reader.required_number("unit_s"));
    proof.bonus = reader.required_count("bonus");
    proof.weight = reader.required_count("weight");
    for (const auto& dual : reader.required_sequence("duals")) {
      const auto number =
          dual.kind == DocumentNode::Kind::Scalar && !dual.is_text ? count_in(dual.scalar) : std::nullopt;
      if (!number) faults_.add(dual.line, path + "duals", in_quotes(dual.scalar) + " is not a whole number");
      proof.duals.push_back(number.value_or(0));
    }
    const auto& sets = reader.required_sequence("odd_sets");
    for (std::size_t i = 0; i < sets.size(); ++i) {
      MappingReader set(sets[i], fmt::format("{}odd_sets[{}].", path, i), faults_);
      proof.odd_sets.push_back({members_in(set, "jobs", proof.devices), set.required_count("dual")});
      set.refuse_unknown();
    }
    proof.barrier = members_in(reader, "barrier", proof.devices);
    reader.refuse_unknown();
    grouping_.proofs.push_back(std::move(proof));
  }

  std::filesystem::path file_;
  FaultList faults_;
  Grouping grouping_;
  std::map<std::string, std::size_t> place_of_;
  std::map<std::size_t, std::size_t> sizes_;  // jobs of each number of devices
  std::vector<std::size_t> number_in_set_;    // of each job among those
  std::size_t unknown_ = 0;
};

}  // namespace

std::string_view name_of(GroupSize size)
{
  return name_in(size_names, size);
}

const std::vector<std::string>& group_size_names()
{
  static const std::vector<std::string> names = names_in(size_names);
  return names;
}

std::optional<GroupSize> group_size_from_name(std::string_view name)
{
  return value_in(size_names, name);
}

std::size_t most_jobs_of(GroupSize size)
{
  return static_cast<std::size_t>(size) + 2;
}

std::vector<JobProfile> read_job_profiles(const std::filesystem::path& file)
{
  FaultList faults(file.string());
  const auto table = CsvTable::by_hand(read_file(file), {"name", "steps", "devices", "compute_s", "network_s"},
                                       {"input_s", "alone_s", "memory_bytes", "activations_bytes"}, faults);
  std::vector<JobProfile> jobs;
  std::map<std::string, int> line_of;
  for (const auto& row : table.rows()) {
    ProfileRow cells(table, row, faults);
    JobProfile job;
    job.name = cells.cell("name");
    if (job.name.empty()) cells.add_fault("name", "is empty; give each job a name");
    const auto [other, is_new] = line_of.emplace(job.name, row.line);
    if (!is_new && !job.name.empty()) {
      cells.add_fault("name", fmt::format("{} is the name of line {} too", in_quotes(job.name), other->second));
    }
    job.steps = cells.count("steps", 1ull << 40);
    job.devices = cells.count("devices", most_devices);
    Seconds sum;
    for (std::size_t i = 0; i < step_resources.size(); ++i) {
      const auto column = fmt::format("{}_s", step_resources[i]);
      job.step.busy[i] =
          Seconds(column == "input_s" ? cells.optional_number(column).value_or(0) : cells.number(column));
      sum += job.step.busy[i];
    }
    const auto alone = cells.optional_number("alone_s");
    job.step.alone = alone ? Seconds(*alone) : sum;
    job.resident = Bytes(cells.optional_number("memory_bytes").value_or(0));
    job.activations = Bytes(cells.optional_number("activations_bytes").value_or(0));
    if (const auto fault = fault_of_step(job.step); cells.is_right() && !fault.empty())
      cells.add_fault("alone_s", fault);
    jobs.push_back(std::move(job));
  }
  if (jobs.size() > most_grouped_jobs) {
    faults.add(table.last_line(), "rows",
               fmt::format("{} jobs; at most {} are grouped", jobs.size(), most_grouped_jobs));
  }
  faults.throw_if_any();
  if (jobs.size() < 2) {
    throw InputError(file.string(), fmt::format("has {}; sharing takes two or more", counted(jobs.size(), "job")));
  }
  return jobs;
}

Grouping read_grouping(const std::filesystem::path& file)
{
  return GroupingReader(file).read();
}

std::string grouping_to_json(const Grouping& grouping)
{
  const auto names_of = [&](const std::vector<std::size_t>& jobs) {
    Json names = Json::array();
    for (const std::size_t job : jobs) names.push_back(grouping.jobs.at(job).name);
    return names;
  };
  std::map<std::size_t, std::vector<std::size_t>> with_devices;
  Json jobs = Json::array();
  for (std::size_t i = 0; i < grouping.jobs.size(); ++i) {
    const auto& job = grouping.jobs[i];
    with_devices[job.devices].push_back(i);
    Json object = {
        {"name", job.name}, {"steps", job.steps}, {"devices", job.devices}, {"alone_s", job.step.alone.value}};
    for (std::size_t r = 0; r < step_resources.size(); ++r) {
      object[fmt::format("{}_s", step_resources[r])] = job.step.busy[r].value;
    }
    object["memory_bytes"] = job.resident.value;
    object["activations_bytes"] = job.activations.value;
    jobs.push_back(std::move(object));
  }
  Json groups = Json::array();
  for (const auto& [members, round, time] : grouping.groups) {
    groups.push_back({{"jobs", names_of(members)}, {"round_s", round.value}, {"time_s", time.value}});
  }
  Json proofs = Json::array();
  for (const auto& proof : grouping.proofs) {
    const auto members = [&](const std::vector<std::size_t>& numbers) {
      std::vector<std::size_t> found;
      for (const std::size_t number : numbers) found.push_back(with_devices.at(proof.devices).at(number));
      return names_of(found);
    };
    Json sets = Json::array();
    for (const auto& set : proof.odd_sets) sets.push_back({{"jobs", members(set.jobs)}, {"dual", set.dual}});
    proofs.push_back({{"devices", proof.devices},
                      {"unit_s", proof.unit.value},
                      {"bonus", proof.bonus},
                      {"weight", proof.weight},
                      {"duals", proof.duals},
                      {"odd_sets", std::move(sets)},
                      {"barrier", members(proof.barrier)}});
  }
  Json baselines = Json::array();
  for (const auto& [rule, total, longest] : grouping.baselines) {
    baselines.push_back({{"rule", rule}, {"total_s", total.value}, {"longest_round_s", longest.value}});
  }
  const Json document = {{"schema", groups_schema},
                         {"group", name_of(grouping.size)},
                         {"at_once", grouping.at_once},
                         {"memory_bytes", grouping.memory ? Json(grouping.memory->value) : Json(nullptr)},
                         {"total_s", grouping.total.value},
                         {"serial_s", grouping.serial.value},
                         {"longest_round_s", grouping.longest.value},
                         {"bound_s", grouping.bound.value},
                         {"groups", std::move(groups)},
                         {"baselines", std::move(baselines)},
                         {"jobs", std::move(jobs)},
                         {"certificates", std::move(proofs)}};
  return json_lines(document);
}

}  // namespace isobar
