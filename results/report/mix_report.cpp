#include "results/report/mix_report.hpp"

#include "core/errors.hpp"
#include "core/text/json_text.hpp"
#include "results/report/report.hpp"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <tuple>
#include <utility>

namespace isobar::results {

namespace {

using Json = nlohmann::ordered_json;

/// Rounds that are drawn: the first is from rest, and later ones are alike.
constexpr std::size_t drawn_rounds = 3;

Json parsed(const NamedText& file, const char* what)
{
  try {
    return Json::parse(file.text);
  } catch (const Json::exception&) {
    throw InputError(file.name, fmt::format("is not {}", what));
  }
}

/// A rank of a mix: a job on a device.
struct Rank {
  std::size_t job = 0;
  std::string device;
};

/// What a row of the chart shows from `begin` to `end`, in microseconds.
struct Span {
  std::string row;
  std::size_t job = 0;
  std::string kind;  ///< compute, wait, transfer
  double begin = 0;
  double end = 0;
  std::string name;

  auto operator<=>(const Span&) const = default;
};

class MixTrace {
 public:
  MixTrace(const NamedText& result, const NamedText& trace, const std::vector<std::string>& jobs,
           const LinksBetween& links_between)
      : links_between_(&links_between)
  {
    const Json json = parsed(trace, "a trace");
    try {
      const Json& events = json.at("traceEvents");
      for (const auto& event : events) {
        if (event.at("ph") == "M" && event.at("name") == "process_name") add_rank(event, jobs);
      }
      for (const auto& event : events) {
        if (event.at("ph") == "X" && ranks_.contains(event.at("pid").get<std::size_t>())) add_event(event);
      }
    } catch (const Json::exception&) {
      throw InputError(trace.name, "is not a trace of isobar simulate --mix");
    }
    for (std::size_t job = 0; job < jobs.size(); ++job) {
      const bool has_rank =
          std::any_of(ranks_.begin(), ranks_.end(), [job](const auto& entry) { return entry.second.job == job; });
      if (has_rank) continue;
      throw InputError(trace.name, fmt::format("has no rank of job {} of {}; name the trace that --trace wrote with it",
                                               in_quotes(jobs[job]), on_one_line(result.name)));
    }
    add_collectives();
  }

  /// Those that begin before a time, by row and begin.
  std::vector<Span> spans_until(double end) const
  {
    std::vector<Span> spans;
    for (const auto& span : spans_) {
      if (span.begin < end && span.end > span.begin) spans.push_back(span);
    }
    return spans;
  }

 private:
  /// A process is named "JOB: DEVICE".
  void add_rank(const Json& event, const std::vector<std::string>& jobs)
  {
    const auto name = event.at("args").at("name").get<std::string>();
    std::optional<Rank> rank;
    for (std::size_t job = 0; job < jobs.size(); ++job) {
      const std::string prefix = jobs[job] + ": ";
      const bool is_longer = !rank || jobs[rank->job].size() < jobs[job].size();
      if (name.starts_with(prefix) && is_longer) rank = Rank{job, name.substr(prefix.size())};
    }
    if (rank) ranks_[event.at("pid").get<std::size_t>()] = *rank;
  }

  void add_event(const Json& event)
  {
    const auto pid = event.at("pid").get<std::size_t>();
    const Rank& rank = ranks_.at(pid);
    const double begin = event.at("ts").get<double>();
    const double end = begin + event.at("dur").get<double>();
    const auto name = event.at("name").get<std::string>();
    const auto kind = event.at("cat").get<std::string>();
    const Json& args = event.at("args");
    if (kind == "turn") {
      if (name == "wait") spans_.insert({rank.device, rank.job, "wait", begin, end, "waits for the device"});
      return;
    }
    if (kind == "Send") {
      const auto peer = ranks_.find(args.at("peer").get<std::size_t>());
      if (peer != ranks_.end()) add_transfer(rank, peer->second.device, begin, end, name);
      return;
    }
    if (kind == "Recv") return;
    if (args.contains("channel")) {
      collectives_[{args.at("channel").get<std::size_t>(), args.at("step").get<std::uint64_t>(),
                    args.at("position").get<std::uint64_t>()}]
          .push_back({pid, begin, end, name});
      return;
    }
    if (args.contains("memory_bytes") && event.at("tid") == 0) {
      spans_.insert({rank.device, rank.job, "compute", begin, end, name});
    }
  }

  void add_transfer(const Rank& from, const std::string& to, double begin, double end, const std::string& name)
  {
    if (from.device == to) return;
    for (const auto& link : (*links_between_)(from.device, to)) {
      spans_.insert({link, from.job, "transfer", begin, end, name});
    }
  }

  /// The ranks of a collective send around a ring.
  void add_collectives()
  {
    for (auto& [key, parts] : collectives_) {
      std::sort(parts.begin(), parts.end());
      for (std::size_t i = 0; i < parts.size(); ++i) {
        const auto& [pid, begin, end, name] = parts[i];
        add_transfer(ranks_.at(pid), ranks_.at(std::get<0>(parts[(i + 1) % parts.size()])).device, begin, end, name);
      }
    }
  }

  const LinksBetween* links_between_;
  std::map<std::size_t, Rank> ranks_;  // by process
  std::set<Span> spans_;
  std::map<std::tuple<std::size_t, std::uint64_t, std::uint64_t>,
           std::vector<std::tuple<std::size_t, double, double, std::string>>>
      collectives_;
};

Json timeline_of(const MixTrace& trace, const Json& result)
{
  constexpr double microseconds = 1e6;
  double end = 0;
  std::size_t rounds = 0;
  for (const auto& time : result.at("round_times_s")) {
    if (rounds == drawn_rounds) break;
    end += time.get<double>();
    ++rounds;
  }
  auto spans = trace.spans_until(end * microseconds);
  std::stable_sort(spans.begin(), spans.end(), [](const Span& a, const Span& b) { return a.begin < b.begin; });
  const std::size_t all = spans.size();
  spans.resize(std::min(all, most_drawn));
  Json columns;
  for (const auto* column : {"row", "job", "kind", "begin_s", "end_s", "name"}) columns[column] = Json::array();
  for (const auto& [row, job, kind, begin, stop, name] : spans) {
    columns["row"].push_back(row);
    columns["job"].push_back(job);
    columns["kind"].push_back(kind);
    columns["begin_s"].push_back(begin / microseconds);
    columns["end_s"].push_back(stop / microseconds);
    columns["name"].push_back(name);
  }
  return {{"rounds", rounds}, {"end_s", end}, {"events", all}, {"spans", std::move(columns)}};
}

}  // namespace

bool is_mix_result(const std::string& text)
{
  constexpr std::size_t beginning = 200;
  return text.substr(0, beginning).find("\"isobar-mix-result/1\"") != std::string::npos;
}

MixPlatform platform_of(const NamedText& result)
{
  const Json json = parsed(result, "a result of a mix");
  try {
    const Json& inputs = json.at("inputs");
    const Json& devices = inputs.at("devices");
    return {inputs.at("platform").at("name").get<std::string>(), inputs.at("platform").at("hash").get<std::string>(),
            devices.is_null() ? "" : devices.get<std::string>()};
  } catch (const Json::exception&) {
    throw InputError(result.name, "is not a whole result of a mix: inputs are missing; simulate again");
  }
}

std::string mix_to_report(const NamedText& result, const NamedText& trace, const LinksBetween& links_between)
{
  const Json json = parsed(result, "a result of a mix");
  try {
    Json mix;
    mix["file"] = result.name;
    mix["platform"] = json.at("inputs").at("platform");
    for (const auto* key :
         {"rounds", "round_time_s", "bound_s", "binds", "gap_fraction", "serial_s", "speedup", "total_s"}) {
      mix[key] = json.at(key);
    }
    mix["saved_s"] = json.at("serial_s").get<double>() - json.at("round_time_s").get<double>();
    std::vector<std::string> names;
    mix["jobs"] = json.at("jobs");
    for (const auto& job : mix["jobs"]) names.push_back(job.at("name").get<std::string>());
    mix["devices"] = json.at("devices");
    mix["links"] = json.at("links");
    for (const auto* key : {"discipline", "hand_over", "links"}) mix["sharing"][key] = json.at("mix").at(key);
    mix["timeline"] = timeline_of(MixTrace(result, trace, names, links_between), json);
    mix["simgrid_version"] = json.at("simgrid_version");
    return json_line(mix);
  } catch (const Json::exception& fault) {
    throw InputError(result.name, fmt::format("is not a whole result of a mix ({}); simulate again", fault.what()));
  }
}

std::string mix_report_to_json(const std::string& version, const std::string& mix)
{
  const Json json = {{"schema", "isobar-report/1"}, {"isobar_version", version}, {"mix", Json::parse(mix)}};
  return json_lines(json);
}

}  // namespace isobar::results
