#include "core/base/files.hpp"
#include "core/errors.hpp"
#include "core/jobs/mix.hpp"
#include "core/names.hpp"
#include "core/text/document.hpp"
#include "core/text/json_text.hpp"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <system_error>

namespace isobar {

namespace {

using Json = nlohmann::ordered_json;

constexpr auto mix_schema = "isobar-mix/1";
constexpr NameTable<Discipline, 3> discipline_names = {
    {{Discipline::Strict, "strict"}, {Discipline::Conserving, "conserving"}, {Discipline::None, "none"}}};
constexpr NameTable<HandOver, 2> hand_over_names = {{{HandOver::Step, "step"}, {HandOver::Instruction, "instruction"}}};
constexpr NameTable<LinkSharing, 2> link_names = {{{LinkSharing::Fifo, "fifo"}, {LinkSharing::Fair, "fair"}}};

constexpr std::size_t longest_name = 64;

/// A name may become one of a folder.
bool is_name(const std::string& name)
{
  constexpr std::string_view allowed = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_.";
  return !name.empty() && name.size() <= longest_name && name.find_first_not_of(allowed) == std::string::npos &&
         name.front() != '.';
}

class MixReader {
 public:
  explicit MixReader(const std::filesystem::path& file) : file_(file), faults_(file.string()) {}

  Mix read()
  {
    const DocumentNode document = parse_json(read_file(file_), file_.string());
    MappingReader reader(document, "", faults_);
    reader.required_choice("schema", {mix_schema});
    const auto& jobs = reader.required_sequence("jobs");
    const DocumentNode* list = reader.optional("jobs");
    const bool is_list = list != nullptr && list->kind == DocumentNode::Kind::Sequence;
    if (is_list && (jobs.empty() || jobs.size() > most_mix_jobs)) {
      reader.add_fault("jobs", fmt::format("has {}; a mix has 1 to {}", jobs.size(), most_mix_jobs));
    }
    for (std::size_t i = 0; i < std::min(jobs.size(), most_mix_jobs); ++i) add_job(jobs[i], i);
    if (reader.has("turns")) {
      add_turns(reader);
    } else {
      for (std::size_t job = 0; job < mix_.jobs.size(); ++job) mix_.turns.push_back({job, 1});
    }
    mix_.discipline = choice(reader, "discipline", discipline_names).value_or(mix_.discipline);
    mix_.hand_over = choice(reader, "hand_over", hand_over_names).value_or(mix_.hand_over);
    mix_.links = choice(reader, "links", link_names).value_or(mix_.links);
    reader.refuse_unknown();
    faults_.throw_if_any();
    return std::move(mix_);
  }

 private:
  template <typename Value, std::size_t Count>
  static std::optional<Value> choice(MappingReader& reader, const std::string& key,
                                     const NameTable<Value, Count>& names)
  {
    return value_in(names, reader.optional_choice(key, names_in(names)).value_or(""));
  }

  void add_job(const DocumentNode& node, std::size_t index)
  {
    MappingReader reader(node, fmt::format("jobs[{}].", index), faults_);
    MixJob job;
    job.name = reader.required_text("name");
    if (reader.has("name") && !is_name(job.name)) {
      reader.add_fault("name",
                       fmt::format("{} is no name; take 1 to {} letters, digits, -, _ and dots, the first one no dot",
                                   in_quotes(job.name), longest_name));
    }
    if (std::ranges::find(mix_.jobs, job.name, &MixJob::name) != mix_.jobs.end()) {
      reader.add_fault("name", in_quotes(job.name) + " is the name of another job too; give each its own");
    }
    job.plan = path_of(reader.required_text("plan"));
    job.workload = path_of(reader.required_text("workload"));
    job.start = Seconds(reader.optional_number("start_s").value_or(0));
    job.steps = reader.optional_count("steps", 1);
    reader.refuse_unknown();
    mix_.jobs.push_back(std::move(job));
  }

  void add_turns(MappingReader& mix)
  {
    const auto& turns = mix.required_sequence("turns");
    std::vector<std::string> names;
    for (const auto& job : mix_.jobs) names.push_back(job.name);
    bool all_found = true;
    for (std::size_t i = 0; i < turns.size(); ++i) {
      MappingReader reader(turns[i], fmt::format("turns[{}].", i), faults_);
      const std::string job = reader.required_text("job");
      const auto found = std::ranges::find(names, job);
      if (found == names.end()) {
        all_found = false;
        const auto nearest = nearest_word(job, names);
        if (reader.has("job")) {
          reader.add_fault("job", in_quotes(job) + " is the name of no job" +
                                      (nearest.empty() ? "" : "; did you mean " + nearest + "?"));
        }
      }
      const std::uint64_t steps = reader.optional_count("steps", 1, most_turn_steps).value_or(1);
      mix_.turns.push_back({static_cast<std::size_t>(found - names.begin()), steps});
      reader.refuse_unknown();
    }
    for (std::size_t job = 0; job < names.size() && all_found; ++job) {
      if (std::ranges::find(mix_.turns, job, &MixTurn::job) == mix_.turns.end()) {
        mix.add_fault("turns",
                      fmt::format("has none of job {}; add {{\"job\": \"{}\"}}", shown(names[job]), shown(names[job])));
      }
    }
  }

  /// The path of a file that the mix names.
  std::string path_of(const std::string& named) const
  {
    const std::filesystem::path path(named);
    std::error_code ignored;
    const auto beside = file_.parent_path() / path;
    return named.empty() || path.is_absolute() || !std::filesystem::exists(beside, ignored) ? named : beside.string();
  }

  std::filesystem::path file_;
  FaultList faults_;
  Mix mix_;
};

}  // namespace

std::string_view name_of(Discipline discipline)
{
  return name_in(discipline_names, discipline);
}

std::string_view name_of(HandOver hand_over)
{
  return name_in(hand_over_names, hand_over);
}

std::string_view name_of(LinkSharing links)
{
  return name_in(link_names, links);
}

std::uint64_t steps_per_round(const Mix& mix, std::size_t job)
{
  std::uint64_t steps = 0;
  for (const auto& turn : mix.turns) steps += turn.job == job ? turn.steps : 0;
  return steps;
}

Mix read_mix(const std::filesystem::path& file)
{
  return MixReader(file).read();
}

std::string mix_to_json(const Mix& mix)
{
  Json jobs = Json::array();
  for (const auto& job : mix.jobs) {
    Json object = {{"name", job.name}, {"plan", job.plan}, {"workload", job.workload}};
    if (job.start > Seconds(0)) object["start_s"] = job.start.value;
    if (job.steps) object["steps"] = *job.steps;
    jobs.push_back(std::move(object));
  }
  Json turns = Json::array();
  for (const auto& turn : mix.turns) turns.push_back({{"job", mix.jobs.at(turn.job).name}, {"steps", turn.steps}});
  const Json document = {{"schema", mix_schema},
                         {"jobs", std::move(jobs)},
                         {"turns", std::move(turns)},
                         {"discipline", name_of(mix.discipline)},
                         {"hand_over", name_of(mix.hand_over)},
                         {"links", name_of(mix.links)}};
  return json_lines(document);
}

}  // namespace isobar
