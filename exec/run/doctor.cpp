#include "exec/run/doctor.hpp"

#include "core/base/clock.hpp"
#include "core/base/quantity_text.hpp"
#include "exec/launch/device_name.hpp"
#include "exec/model/device.hpp"
#include "exec/model/stream.hpp"
#include "exec/net/side_channel.hpp"
#include "exec/net/tcp_settings.hpp"
#include "exec/run/nccl.hpp"

#include <fmt/format.h>

#include <torch/torch.h>
#include <torch/version.h>

#include <algorithm>
#include <cstdlib>
#include <functional>
#include <string>
#include <thread>

namespace isobar::exec {

namespace {

using Verdict = Finding::Verdict;

constexpr Seconds patience{600};
constexpr std::int64_t width = 1024;
constexpr std::int64_t heads = 16;
constexpr int repetitions = 7;

/// The median time of some calls after a first one, until the device has done what they ask for.
Seconds time_of(const std::string& device, const std::function<void()>& call)
{
  const auto work = [&] {
    call();
    event_of_this_thread(device).wait();
  };
  work();
  std::vector<Seconds> times;
  for (int i = 0; i < repetitions; ++i) {
    const auto begin = Clock::now();
    work();
    times.push_back(time_since(begin));
  }
  std::nth_element(times.begin(), times.begin() + repetitions / 2, times.end());
  return times[repetitions / 2];
}

Finding processor(std::size_t threads)
{
  const unsigned cores = std::thread::hardware_concurrency();
  double load = 0;
  getloadavg(&load, 1);
  constexpr double idle = 0.5;
  const std::string text = fmt::format("{}, of {} cores; load {:.2g}", processor_name(threads), cores, load);
  if (threads > cores) return {Verdict::Bad, "processor", text + ": more threads than cores"};
  if (load > idle)
    return {Verdict::Doubtful, "processor", text + ": others are at work, and measurements will show it"};
  return {Verdict::Good, "processor", text};
}

Finding gpu(const std::string& device)
{
  const GpuFacts facts = facts_of_gpu(device);
  return {Verdict::Good, device, fmt::format("{}, {}", facts.name, text_of(facts.memory))};
}

Finding nccl_library(bool on_gpu)
{
  try {
    return {Verdict::Good, "NCCL", nccl::text_of_version(nccl::version())};
  } catch (const EnvironmentError& error) {
    return {on_gpu ? Verdict::Doubtful : Verdict::Good, "NCCL",
            fmt::format("none ({}): tensors go through the host", error.what())};
  }
}

/// What a GPU has, or what programs may take of a machine without swapping.
Bytes memory_of(const std::string& device)
{
  if (is_gpu(device)) return facts_of_gpu(device).memory;
  return available_memory();
}

Finding memory(const DoctorOptions& options)
{
  const Bytes available = memory_of(options.device);
  Bytes needed;
  if (options.plan && options.plan->predicted) {
    for (std::size_t rank = 0; rank < options.plan->stages.size(); ++rank) {
      if (options.rank && rank != *options.rank) continue;
      needed += options.plan->predicted->peak_memory.at(options.plan->stages[rank].device());
    }
  }
  const std::string text = fmt::format("{} available", text_of(available));
  if (!options.plan) return {Verdict::Good, "memory", text};
  const std::string of_plan = fmt::format("{}; the plan needs {} here", text, text_of(needed));
  return {needed > available ? Verdict::Bad : Verdict::Good, "memory", of_plan};
}

Finding products(const DoctorOptions& options)
{
  const torch::NoGradGuard no_graph;
  const auto rows = static_cast<std::int64_t>(options.micro_batch * options.sequence);
  const at::Tensor left = at::ones({rows, width}, at::Device(options.device));
  const at::Tensor right = at::ones({width, width}, at::Device(options.device));
  const Seconds time = time_of(options.device, [&] { at::matmul(left, right); });
  const Flops work(2.0 * static_cast<double>(rows) * width * width);
  return {Verdict::Good, "matrix product",
          fmt::format("{} at [{}, {}] x [{}, {}], float32", text_of(work / time), rows, width, width, width)};
}

Finding attention(const DoctorOptions& options)
{
  const torch::NoGradGuard no_graph;
  const auto batch = static_cast<std::int64_t>(options.micro_batch);
  const auto sequence = static_cast<std::int64_t>(options.sequence);
  const at::Tensor tokens = at::ones({batch, heads, sequence, width / heads}, at::Device(options.device));
  const Seconds time = time_of(options.device, [&] { at::scaled_dot_product_attention(tokens, tokens, tokens); });
  return {Verdict::Good, "attention",
          fmt::format("{} for {} samples of {} tokens, {} heads of {}, float32", text_of(time), batch, sequence, heads,
                      width / heads)};
}

/// How much later than asked this machine wakes a thread.
Finding sleep_accuracy()
{
  constexpr std::chrono::milliseconds asked{1};
  constexpr Seconds good{2e-4};
  const Seconds late = time_of("cpu", [&] { std::this_thread::sleep_for(asked); }) - Seconds(1e-3);
  const std::string text = fmt::format("{} late after {} ms", text_of(late), asked.count());
  if (late < good) return {Verdict::Good, "sleep", text};
  return {Verdict::Doubtful, "sleep", text + ": --emulate stretches short instructions too far"};
}

Finding finding_of(const LinkMeasurement& link, const std::string& subject, const std::optional<TcpSettings>& settings)
{
  const std::string held_up = settings ? what_holds_up(link, *settings) : "";
  return {held_up.empty() ? Verdict::Good : Verdict::Doubtful, subject,
          fmt::format("{} and {} with {} connection{}{}", text_of(link.latency), text_of(link.bandwidth), link.flows,
                      link.flows == 1 ? "" : "s", held_up)};
}

/// The system's settings, the clocks, and the links that begin here.
std::vector<Finding> network(const DoctorOptions& options)
{
  constexpr auto run_id = "doctor";
  std::vector<Finding> findings;
  const auto settings = tcp_settings();
  if (settings) findings.push_back({Verdict::Good, "TCP", text_of(*settings)});
  if (!options.rank) {
    for (const std::size_t flows : flow_counts(options.flows)) {
      findings.push_back(finding_of(probe_loopback(flows), "loopback", settings));
    }
    return findings;
  }
  TcpOptions tcp = options.tcp;
  tcp.run_id = run_id;
  {
    TcpWorld world(*options.rank, options.ranks, SideChannel::links(options.ranks.size()), tcp);
    const Seconds offset = SideChannel(world, *options.rank, options.ranks.size(), patience).clock_offset();
    findings.push_back({Verdict::Good, "clock", fmt::format("rank 0's shows {:+.6f} s more", offset.value)});
  }
  for (const auto& link : probe_links(*options.rank, options.ranks, options.flows, tcp)) {
    findings.push_back(finding_of(link, fmt::format("link to rank {}", link.to), settings));
  }
  return findings;
}

}  // namespace

std::vector<Finding> examine(const DoctorOptions& options)
{
  open_device(options.device);
  at::set_num_threads(static_cast<int>(options.threads));
  std::vector<Finding> findings = {{Verdict::Good, "LibTorch", TORCH_VERSION}, processor(options.threads)};
  if (is_gpu(options.device)) findings.push_back(gpu(options.device));
  findings.push_back(nccl_library(is_gpu(options.device)));
  for (auto& finding : {memory(options), products(options), attention(options), sleep_accuracy()}) {
    findings.push_back(finding);
  }
  for (auto& finding : network(options)) findings.push_back(std::move(finding));
  return findings;
}

}  // namespace isobar::exec
