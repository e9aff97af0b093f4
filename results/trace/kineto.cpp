#include "results/trace/kineto.hpp"

#include "core/errors.hpp"
#include "core/text/json_text.hpp"
#include "core/text/quantity_text.hpp"
#include "results/table.hpp"
#include "results/trace/gzip.hpp"
#include "results/trace/intervals.hpp"
#include "results/trace/trace_file.hpp"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cstdint>
#include <map>
#include <set>
#include <utility>

namespace isobar::results {

namespace {

/// Kineto's times are microseconds since 1970, about 1.7e15, with three decimals: double resolves only 0.25 us there.
using Real = long double;
using KinetoJson = nlohmann::basic_json<std::map, std::vector, std::string, bool, std::int64_t, std::uint64_t, Real>;

struct KinetoStream {
  std::uint64_t events = 0;
  std::vector<Interval> moments;
};

struct Gpu {
  std::vector<Interval> compute;
  std::vector<Interval> communication;
  std::vector<Interval> copies;
};

/// Sums up events in the order of the file.
class KinetoReader {
 public:
  void add(const KinetoJson& event)
  {
    if (event.at("ph") != "X" || !event.contains("cat")) return;
    const std::string category = event.at("cat");
    if (category == "cpu_op") {
      add_to(fmt::format("process {} thread {}", text_of_id(event.at("pid")), text_of_id(event.at("tid"))), event);
      return;
    }
    const bool is_kernel = category == "kernel";
    if (!is_kernel && category != "gpu_memcpy" && category != "gpu_memset") return;
    const auto device = event.at("args").at("device").get<std::uint64_t>();
    const auto moment =
        add_to(fmt::format("GPU {} stream {}", device, text_of_id(event.at("args").at("stream"))), event);
    Gpu& gpu = gpus_[device];
    const bool communicates = is_kernel && event.at("name").get<std::string>().rfind("nccl", 0) == 0;
    (communicates ? gpu.communication : is_kernel ? gpu.compute : gpu.copies).push_back(moment);
  }

  KinetoStats stats() const
  {
    KinetoStats stats;
    std::vector<Interval> all;
    for (const auto& [name, stream] : streams_) {
      stats.streams.push_back({name, stream.events, Intervals(stream.moments).length()});
      all.insert(all.end(), stream.moments.begin(), stream.moments.end());
    }
    stats.span = span_of(Intervals(all));
    for (const auto& [device, gpu] : gpus_) stats.gpus.push_back(times_of(device, gpu));
    return stats;
  }

 private:
  /// An id is a number or a text such as "stream 7".
  static std::string text_of_id(const KinetoJson& id)
  {
    return id.is_string() ? id.get<std::string>() : std::to_string(id.get<std::int64_t>());
  }

  static Seconds span_of(const Intervals& moments)
  {
    const auto& intervals = moments.intervals();
    return intervals.empty() ? Seconds(0) : intervals.back().end - intervals.front().begin;
  }

  static GpuTimes times_of(std::uint64_t device, const Gpu& gpu)
  {
    const Intervals compute(gpu.compute);
    const Intervals communication(gpu.communication);
    const Intervals copies(gpu.copies);
    std::vector<Interval> any;
    for (const auto* moments : {&gpu.compute, &gpu.communication, &gpu.copies}) {
      any.insert(any.end(), moments->begin(), moments->end());
    }
    const Intervals busy(any);
    return {device,
            compute.length(),
            communication.length(),
            (communication & compute).length(),
            copies.length(),
            span_of(busy) - busy.length()};
  }

  Interval add_to(const std::string& name, const KinetoJson& event)
  {
    const auto time_us = event.at("ts").get<Real>();
    if (!origin_us_) origin_us_ = time_us;
    const Seconds begin(1e-6 * static_cast<double>(time_us - *origin_us_));
    const Seconds duration(1e-6 * static_cast<double>(event.at("dur").get<Real>()));
    if (duration < Seconds(0)) throw InputError("dur: less than 0");
    KinetoStream& stream = streams_[name];
    ++stream.events;
    stream.moments.push_back({begin, begin + duration});
    return stream.moments.back();
  }

  std::optional<Real> origin_us_;  // the first event's begin
  std::map<std::string, KinetoStream> streams_;
  std::map<std::uint64_t, Gpu> gpus_;
};

bool is_kinetos(const KinetoJson& event)
{
  static const std::set<std::string> categories = {"cpu_op", "kernel", "gpu_memcpy", "gpu_memset"};
  if (!event.is_object()) return false;
  const auto category = event.find("cat");
  return category != event.end() && category->is_string() && categories.contains(category->get<std::string>());
}

}  // namespace

std::optional<KinetoStats> read_kineto(const std::filesystem::path& file)
{
  const std::string text = read_unpacked(file);
  KinetoReader reader;
  std::size_t index = 0;
  try {
    if (is_list_of_events(text)) return std::nullopt;
    const KinetoJson json = KinetoJson::parse(text);
    if (!json.is_object() || !json.contains("traceEvents")) return std::nullopt;
    const auto& events = json.at("traceEvents");
    const bool is_trace = json.contains("schemaVersion") || std::any_of(events.begin(), events.end(), is_kinetos);
    if (!is_trace) return std::nullopt;
    for (const auto& event : events) {
      reader.add(event);
      ++index;
    }
  } catch (const KinetoJson::parse_error& error) {
    throw fault_of_trace_text(file.string(), text, error.byte, error.what());
  } catch (const KinetoJson::exception& error) {
    throw InputError(file.string(), fmt::format("traceEvents[{}]: {}", index, json_fault_message(error.what())));
  } catch (const InputError& fault) {
    throw InputError(file.string(), fmt::format("traceEvents[{}].{}", index, fault.what()));
  }
  auto stats = reader.stats();
  if (stats.streams.empty()) throw InputError(file.string(), "traceEvents: holds no operators and no kernels");
  return stats;
}

std::string kineto_to_json(const KinetoStats& stats)
{
  using Ordered = nlohmann::ordered_json;
  Ordered streams = Ordered::array();
  for (const auto& stream : stats.streams) {
    streams.push_back({{"name", stream.name}, {"events", stream.events}, {"busy_s", stream.busy.value}});
  }
  Ordered gpus = Ordered::array();
  for (const auto& gpu : stats.gpus) {
    gpus.push_back({{"device", gpu.device},
                    {"compute_s", gpu.compute.value},
                    {"communication_s", gpu.communication.value},
                    {"communication_hidden_s", gpu.hidden.value},
                    {"communication_exposed_s", (gpu.communication - gpu.hidden).value},
                    {"copies_s", gpu.copies.value},
                    {"idle_s", gpu.idle.value}});
  }
  const Ordered document = {{"schema", "isobar-kineto-stats/1"},
                            {"span_s", stats.span.value},
                            {"streams", std::move(streams)},
                            {"gpus", std::move(gpus)}};
  return json_lines(document);
}

std::string kineto_to_text(const KinetoStats& stats)
{
  const auto share = [&](Seconds time) {
    return stats.span > Seconds(0) ? fmt::format("{:.1f} %", 100 * (time / stats.span)) : std::string("–");
  };
  std::vector<std::vector<std::string>> streams;
  for (const auto& stream : stats.streams) {
    streams.push_back({stream.name, fmt::format("{}", stream.events), text_of(stream.busy), share(stream.busy)});
  }
  std::string text = fmt::format("PyTorch profiler trace over {}\n\n{}", text_of(stats.span),
                                 table_of({"stream", "events", "busy", "of the span"}, streams));
  if (stats.gpus.empty()) return text;
  std::vector<std::vector<std::string>> gpus;
  for (const auto& gpu : stats.gpus) {
    gpus.push_back({fmt::format("GPU {}", gpu.device), text_of(gpu.compute), text_of(gpu.communication),
                    text_of(gpu.hidden), text_of(gpu.communication - gpu.hidden), text_of(gpu.copies),
                    text_of(gpu.idle)});
  }
  return text + "\n" + table_of({"device", "compute", "communication", "hidden", "exposed", "copies", "idle"}, gpus);
}

}  // namespace isobar::results
