#include "results/sweep/sweep.hpp"

#include "core/plan/plan.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>
#include <set>

namespace isobar::results {

namespace {

constexpr std::size_t most_runs = 1'000'000;
constexpr std::uint64_t most_repetitions = 10'000;

std::uint64_t number_of(const DocumentNode& count)
{
  std::uint64_t number = 0;
  std::from_chars(count.scalar.data(), count.scalar.data() + count.scalar.size(), number);
  return number;
}

DocumentNode count_node(std::uint64_t number, int line)
{
  DocumentNode node;
  node.kind = DocumentNode::Kind::Scalar;
  node.line = line;
  node.scalar = std::to_string(number);
  return node;
}

DocumentNode mapping_of(const std::string& key, const DocumentNode& value)
{
  DocumentNode mapping;
  mapping.kind = DocumentNode::Kind::Mapping;
  mapping.line = value.line;
  mapping.members.push_back({key, value});
  return mapping;
}

}  // namespace

/// Reads a sweep file.
class SweepReader {
 public:
  SweepReader(const DocumentNode& document, const std::string& name, const SweepVocabulary& vocabulary)
      : faults_(name), file_(document, "", faults_), vocabulary_(&vocabulary)
  {
    sweep_.file_ = name;
  }

  Sweep read()
  {
    read_platform();
    if (file_.has("trace")) {
      read_schedule();
    } else {
      read_planning();
    }
    read_seeds();
    read_zip();
    file_.refuse_unknown();
    faults_.throw_if_any();
    set_strides();
    faults_.throw_if_any();
    return std::move(sweep_);
  }

 private:
  /// Adds a fault for an invalid value, which is the only member of the reader.
  using CheckValue = std::function<void(MappingReader& reader, const std::string& key)>;

  /// Reads one value or a list of values. `name` is the parameter's.
  void add_parameter(MappingReader& reader, const std::string& key, const std::string& name, const CheckValue& check)
  {
    const DocumentNode* node = reader.optional(key);
    if (node == nullptr) return;
    const bool is_list = node->kind == DocumentNode::Kind::Sequence;
    SweepParameter parameter{name, is_list ? node->items : std::vector<DocumentNode>{*node}};
    if (parameter.values.empty()) reader.add_fault(key, "is an empty list; write one or more values");
    const std::string path = reader.path_of(key);
    for (const auto& value : parameter.values) {
      const DocumentNode mapping = mapping_of(key, value);
      MappingReader item(mapping, path.substr(0, path.size() - key.size()), faults_);
      if (value.kind == DocumentNode::Kind::Scalar) {
        check(item, key);
      } else {
        item.add_fault(key, "holds a value that is neither a number nor text; write a value or a list of values");
      }
    }
    if (!parameter.values.empty()) sweep_.parameters_.push_back(std::move(parameter));
  }

  static void check_text(MappingReader& reader, const std::string& key)
  {
    if (reader.required_text(key).empty()) reader.add_fault(key, "is empty; write a value");
  }
  static CheckValue choice(std::vector<std::string> choices)
  {
    return [choices = std::move(choices)](MappingReader& reader, const std::string& key) {
      reader.required_choice(key, choices);
    };
  }
  /// Checks with a function that throws an InputError, "KEY: …".
  static CheckValue accepted_by(const std::function<void(const std::string&)>& require)
  {
    return [&require](MappingReader& reader, const std::string& key) {
      try {
        require(reader.required_text(key));
      } catch (const InputError& fault) {
        reader.add_fault(key, without_place(key, fault));
      }
    };
  }
  static CheckValue count(std::uint64_t lowest, std::uint64_t highest = MappingReader::max_count)
  {
    return [=](MappingReader& reader, const std::string& key) { reader.required_count(key, lowest, highest); };
  }
  static void check_factor(MappingReader& reader, const std::string& key)
  {
    const auto factor = reader.optional_number(key, std::numeric_limits<double>::lowest());
    if (factor && *factor <= 0) reader.add_fault(key, "is not a factor; write a number above 0");
  }

  /// Reads `platform` or `workload` if it holds file names; returns true if it is a mapping.
  bool read_files(const std::string& key)
  {
    const DocumentNode* node = file_.required(key);
    if (node == nullptr || node->kind == DocumentNode::Kind::Mapping) return node != nullptr;
    add_parameter(file_, key, key, check_text);
    return false;
  }

  void read_platform()
  {
    if (!read_files("platform")) return;
    MappingReader platform(*file_.optional("platform"), "platform.", faults_);
    if (!platform.has("generate")) {
      if (!platform.has("file")) platform.required("file");
      add_parameter(platform, "file", "platform", check_text);
      add_parameter(platform, "devices", "platform.devices", check_text);
      platform.refuse_unknown();
      return;
    }
    sweep_.generates_platforms_ = true;
    const DocumentNode* generate = platform.optional("generate");
    const std::string generator = platform.required_choice("generate", vocabulary_->generators);
    if (!faults_.empty()) return;  // the options depend on the generator
    sweep_.parameters_.push_back({"platform", {*generate}});
    for (const auto& option : vocabulary_->options_of_generator(generator)) {
      add_parameter(platform, option, "platform." + option, [](MappingReader&, const std::string&) {});
    }
    platform.refuse_unknown();
  }

  void read_workload()
  {
    if (!read_files("workload")) return;
    MappingReader workload(*file_.optional("workload"), "workload.", faults_);
    if (!workload.has("file")) workload.required("file");
    add_parameter(workload, "file", "workload", check_text);
    for (const auto& key : workload.keys()) {
      if (key != "file") add_parameter(workload, key, "workload." + key, [](MappingReader&, const std::string&) {});
    }
  }

  void read_planning()
  {
    read_workload();
    add_parameter(file_, "profile", "profile", check_text);
    read_goal();
    read_scale();
    read_belief();
  }

  /// The options of `isobar cluster`; their values are checked by the command's own rules.
  void read_schedule()
  {
    sweep_.kind_ = &scheduled_runs();
    if (file_.optional("workload") != nullptr) {
      file_.add_fault("workload", "does not go with `trace`, whose jobs are scheduled; leave one of them out");
    }
    add_parameter(file_, "trace", "trace", check_text);
    for (const auto* key : {"format", "header"}) add_parameter(file_, key, key, check_text);
    add_parameter(file_, "at_once", "at_once", choice({"true", "false"}));
    add_parameter(file_, "load", "load", check_factor);
    if (!file_.has("policy")) file_.required("policy");
    for (const auto* key : {"policy", "semantics", "round"}) add_parameter(file_, key, key, check_text);
    add_parameter(file_, "step_factor", "step_factor", check_factor);
    add_parameter(file_, "charge_moves", "charge_moves", choice({"true", "false"}));
    for (const auto* key : {"order", "round_form"}) add_parameter(file_, key, key, check_text);
    add_parameter(file_, "largest_group", "largest_group", count(0));
  }

  void read_goal()
  {
    if (!file_.has("allocator")) file_.required("allocator");
    add_parameter(file_, "allocator", "allocator", accepted_by(vocabulary_->require_allocator));
    add_parameter(file_, "objective", "objective", choice(objective_names()));
    add_parameter(file_, "communication", "communication", choice(communication_names()));
    add_parameter(file_, "schedule", "schedule", accepted_by(vocabulary_->require_schedule));
    add_parameter(file_, "microbatches", "microbatches", count(1, most_microbatches_by_recurrence));
    add_parameter(file_, "recompute", "recompute", check_text);
    add_parameter(file_, "window", "window", count(0));
    add_parameter(file_, "offload", "offload", choice({"auto", "none"}));
    add_parameter(file_, "shares", "shares", choice({"best", "even", "speed"}));
    const DocumentNode* budget = file_.optional("budget");
    if (budget == nullptr || budget->kind != DocumentNode::Kind::Mapping) {
      add_parameter(file_, "budget", "budget", count(0));
      return;
    }
    MappingReader budgets(*budget, "budget.", faults_);
    for (const auto& allocator : budgets.keys()) {
      sweep_.budget_of_allocator_[allocator] = budgets.required_count(allocator);
      if (!has_value("allocator", allocator)) budgets.add_fault(allocator, "is not an allocator of this sweep");
    }
  }

  void read_scale()
  {
    if (const DocumentNode* node = file_.optional("scale")) {
      MappingReader scale(*node, "scale.", faults_);
      for (const auto* property : {"bandwidth", "latency", "speed", "memory"}) {
        add_parameter(scale, property, std::string("scale.") + property, check_factor);
      }
      scale.refuse_unknown();
    }
    add_parameter(file_, "noise", "noise", [](MappingReader& reader, const std::string& key) {
      constexpr double most_noise = 10;
      if (reader.required_number(key) > most_noise) reader.add_fault(key, "is above 10; write at most 10");
    });
  }

  void read_belief()
  {
    const DocumentNode* node = file_.optional("believed");
    if (node == nullptr) return;
    MappingReader belief(*node, "believed.", faults_);
    for (const auto* property : {"bandwidth", "latency", "speed"}) {
      add_parameter(belief, property, std::string("believed.") + property, check_factor);
    }
    add_parameter(belief, "layer_noise", "believed.layer_noise", [](MappingReader& reader, const std::string& key) {
      if (reader.required_number(key) >= 1) reader.add_fault(key, "is 1 or more; write a number below 1");
    });
    belief.refuse_unknown();
  }

  void read_seeds()
  {
    const auto repetitions = file_.optional_count("repetitions", 1, most_repetitions);
    add_parameter(file_, "seed", "seed", count(0));
    if (!repetitions) return;
    if (sweep_.parameters_.empty() || sweep_.parameters_.back().name != "seed") {
      sweep_.parameters_.push_back({"seed", {count_node(1, file_.line())}});
    }
    auto& seeds = sweep_.parameters_.back().values;
    if (seeds.size() > 1) {
      file_.add_fault("repetitions", "cannot be combined with a list of seeds; write one of the two");
      return;
    }
    for (std::uint64_t i = 1; i < *repetitions; ++i) {
      seeds.push_back(count_node(number_of(seeds.front()) + i, seeds.front().line));
    }
  }

  void read_zip()
  {
    if (!file_.has("zip")) {
      file_.optional("zip");
      return;
    }
    std::set<std::string> seen;
    for (const auto& group : file_.required_sequence("zip")) {
      std::vector<std::size_t> members;
      if (group.kind != DocumentNode::Kind::Sequence) {
        faults_.add(group.line, "zip",
                    "holds an entry that is not a list; write lists of parameters that vary together");
        continue;
      }
      for (const auto& name : group.items) {
        const auto parameter = parameter_named(name.scalar);
        if (!parameter) {
          faults_.add(name.line, "zip",
                      fmt::format("{} is not a parameter of this sweep; the parameters are {}", in_quotes(name.scalar),
                                  fmt::join(parameter_names(), ", ")));
        } else if (!seen.insert(name.scalar).second) {
          faults_.add(name.line, "zip", fmt::format("{} is listed twice; remove one", in_quotes(name.scalar)));
        } else {
          members.push_back(*parameter);
        }
      }
      check_lengths(group, members);
      if (members.size() > 1) zipped_.push_back(std::move(members));
    }
  }

  void check_lengths(const DocumentNode& group, const std::vector<std::size_t>& members)
  {
    for (const auto member : members) {
      const auto& first = sweep_.parameters_[members.front()];
      const auto& other = sweep_.parameters_[member];
      if (first.values.size() == other.values.size()) continue;
      faults_.add(group.line, "zip",
                  fmt::format("{} has {} values and {} has {}; write zipped lists of the same length", first.name,
                              first.values.size(), other.name, other.values.size()));
      return;
    }
  }

  /// Refuses repeated values, or repeated combinations of zipped parameters.
  void check_once(const std::vector<std::size_t>& group)
  {
    std::set<std::vector<std::string>> seen;
    for (std::size_t i = 0; i < sweep_.parameters_[group.front()].values.size(); ++i) {
      std::vector<std::string> values;
      for (const auto member : group) values.push_back(sweep_.parameters_[member].values[i].scalar);
      if (seen.insert(values).second) continue;
      faults_.add(sweep_.parameters_[group.front()].values[i].line, sweep_.parameters_[group.front()].name,
                  fmt::format("{} is given twice; remove one", in_quotes(fmt::format("{}", fmt::join(values, ", ")))));
    }
  }

  /// Groups of parameters that vary together, in the order of their first members.
  std::vector<std::vector<std::size_t>> groups() const
  {
    std::vector<std::vector<std::size_t>> groups;
    std::vector<bool> grouped(sweep_.parameters_.size(), false);
    for (std::size_t i = 0; i < sweep_.parameters_.size(); ++i) {
      if (grouped[i]) continue;
      std::vector<std::size_t> group = {i};
      for (const auto& zipped : zipped_) {
        if (std::find(zipped.begin(), zipped.end(), i) != zipped.end()) group = zipped;
      }
      for (const auto member : group) grouped[member] = true;
      groups.push_back(std::move(group));
    }
    return groups;
  }

  void set_strides()
  {
    auto fastest_first = groups();
    std::reverse(fastest_first.begin(), fastest_first.end());
    sweep_.strides_.assign(sweep_.parameters_.size(), 1);
    for (const auto& group : fastest_first) {
      check_once(group);
      for (const auto member : group) sweep_.strides_[member] = sweep_.runs_;
      sweep_.runs_ *= sweep_.parameters_[group.front()].values.size();
      if (sweep_.runs_ <= most_runs) continue;
      faults_.add(1, "", fmt::format("more than {} runs; write shorter lists or several sweeps", most_runs));
      return;
    }
  }

  std::optional<std::size_t> parameter_named(const std::string& name) const
  {
    for (std::size_t i = 0; i < sweep_.parameters_.size(); ++i) {
      if (sweep_.parameters_[i].name == name) return i;
    }
    return std::nullopt;
  }
  std::vector<std::string> parameter_names() const
  {
    std::vector<std::string> names;
    for (const auto& parameter : sweep_.parameters_) names.push_back(parameter.name);
    return names;
  }
  bool has_value(const std::string& name, const std::string& value) const
  {
    const auto parameter = parameter_named(name);
    if (!parameter) return false;
    const auto& values = sweep_.parameters_[*parameter].values;
    return std::any_of(values.begin(), values.end(), [&](const auto& node) { return node.scalar == value; });
  }

  Sweep sweep_;
  FaultList faults_;
  MappingReader file_;
  const SweepVocabulary* vocabulary_;
  std::vector<std::vector<std::size_t>> zipped_;
};

Sweep Sweep::from_text(const std::string& text, const std::string& name, const SweepVocabulary& vocabulary)
{
  const DocumentNode document = parse_yaml(text, name);
  return SweepReader(document, name, vocabulary).read();
}

bool Sweep::has_parameter(const std::string& name) const
{
  return std::any_of(parameters_.begin(), parameters_.end(),
                     [&name](const SweepParameter& parameter) { return parameter.name == name; });
}

std::size_t Sweep::value_index(std::size_t run, std::size_t parameter) const
{
  return run / strides_[parameter] % parameters_[parameter].values.size();
}

const DocumentNode* Sweep::value(std::size_t run, const std::string& parameter) const
{
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    if (parameters_[i].name == parameter) return &parameters_[i].values[value_index(run, i)];
  }
  return nullptr;
}

std::string Sweep::text(std::size_t run, const std::string& parameter) const
{
  const DocumentNode* node = value(run, parameter);
  return node == nullptr ? "" : node->scalar;
}

std::vector<DocumentNode::Member> Sweep::members(std::size_t run, const std::string& group) const
{
  std::vector<DocumentNode::Member> members;
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    const auto& name = parameters_[i].name;
    if (!name.starts_with(group + ".")) continue;
    members.push_back({name.substr(group.size() + 1), parameters_[i].values[value_index(run, i)]});
  }
  return members;
}

std::uint64_t Sweep::seed(std::size_t run) const
{
  const DocumentNode* seed = value(run, "seed");
  return seed == nullptr ? (schedules_jobs() ? 0 : 1) : number_of(*seed);
}

std::optional<std::uint64_t> Sweep::budget(std::size_t run) const
{
  if (const DocumentNode* budget = value(run, "budget")) return number_of(*budget);
  const auto budget = budget_of_allocator_.find(text(run, "allocator"));
  return budget == budget_of_allocator_.end() ? std::nullopt : std::optional(budget->second);
}

bool is_number(const DocumentNode& value)
{
  double number = 0;
  const auto& text = value.scalar;
  const auto [end, fault] = std::from_chars(text.data(), text.data() + text.size(), number);
  return !value.quoted && fault == std::errc{} && end == text.data() + text.size() && std::isfinite(number);
}

}  // namespace isobar::results
