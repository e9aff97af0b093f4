#include "exec/run/doctor.hpp"

#include "core/base/clock.hpp"
#include "core/text/quantity_text.hpp"
#include "exec/device/device.hpp"
#include "exec/device/stream.hpp"
#include "exec/launch/device_name.hpp"
#include "exec/launch/tcp_settings.hpp"
#include "exec/links/side_channel.hpp"
#include "exec/transport/nccl.hpp"

#include <fmt/format.h>

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>
#include <torch/version.h>

#include <algorithm>
#include <cstdlib>
#include <functional>
#include <string>
#include <thread>

namespace isobar::exec {

namespace {

using Verdict = Finding::Verdict;

constexpr Seconds deadline{600};
constexpr std::int64_t width = 1024;
constexpr std::int64_t heads = 16;
constexpr int repetitions = 7;

/// Median time of a call, including its work on the device, after a first call that does not count.
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
  if (threads > cores) return {Verdict::Bad, "processor", text + "; more threads than cores"};
  if (load > idle) {
    return {Verdict::Doubtful, "processor", text + "; other processes are running and will disturb measurements"};
  }
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

Finding memory(const DoctorOptions& options)
{
  const bool on_gpu = is_gpu(options.device);
  const MachineMemory machine = machine_memory();
  const Bytes available = on_gpu ? facts_of_gpu(options.device).memory : machine.available;
  const std::string text = on_gpu ? text_of(available) + " available" : text_of(machine);
  if (!options.plan) return {Verdict::Good, "memory", text};
  const MachineNeed need =
      memory_need("the plan needs", peak_memory_here(*options.plan, options.rank), available, text);
  return {need.is_met() ? Verdict::Good : Verdict::Bad, need.subject, need.text};
}

Finding products(const DoctorOptions& options)
{
  const at::NoGradGuard no_graph;
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
  const at::NoGradGuard no_graph;
  const auto batch = static_cast<std::int64_t>(options.micro_batch);
  const auto sequence = static_cast<std::int64_t>(options.sequence);
  const at::Tensor tokens = at::ones({batch, heads, sequence, width / heads}, at::Device(options.device));
  const Seconds time = time_of(options.device, [&] { at::scaled_dot_product_attention(tokens, tokens, tokens); });
  return {Verdict::Good, "attention",
          fmt::format("{} for {} samples of {} tokens, {} heads of {}, float32", text_of(time), batch, sequence, heads,
                      width / heads)};
}

/// How late this machine wakes a sleeping thread.
Finding sleep_accuracy()
{
  constexpr std::chrono::milliseconds requested{1};
  constexpr Seconds good{2e-4};
  const Seconds late = time_of("cpu", [&] { std::this_thread::sleep_for(requested); }) - Seconds(1e-3);
  const std::string text = fmt::format("wakes {} late after {} ms", text_of(late), requested.count());
  if (late < good) return {Verdict::Good, "sleep", text};
  return {Verdict::Doubtful, "sleep", text + "; --emulate stretches short instructions too far"};
}

Finding finding_of(const LinkMeasurement& link, const std::string& subject, const std::optional<TcpSettings>& settings)
{
  const std::string held_up = settings ? limiting_settings(link, *settings) : "";
  return {held_up.empty() ? Verdict::Good : Verdict::Doubtful, subject,
          fmt::format("{} and {} with {} connection{}{}", text_of(link.latency), text_of(link.bandwidth),
                      link.connections, link.connections == 1 ? "" : "s", held_up)};
}

/// The system's TCP settings, the clock, and the links from this rank.
std::vector<Finding> network(const DoctorOptions& options)
{
  constexpr auto run_id = "doctor";
  std::vector<Finding> findings;
  const auto settings = tcp_settings();
  if (settings) findings.push_back({Verdict::Good, "TCP", text_of(*settings)});
  if (!options.rank) {
    for (const std::size_t connections : connection_counts(options.connections)) {
      findings.push_back(finding_of(probe_loopback(connections), "loopback", settings));
    }
    return findings;
  }
  TcpOptions tcp = options.tcp;
  tcp.run_id = run_id;
  {
    TcpWorld world(*options.rank, options.ranks, SideChannel::links(options.ranks.size()), tcp);
    const Seconds offset = SideChannel(world, *options.rank, options.ranks.size(), deadline).clock_offset();
    findings.push_back({Verdict::Good, "clock", fmt::format("rank 0's is {:+.6f} s ahead", offset.value)});
  }
  for (const auto& link : probe_links(*options.rank, options.ranks, options.connections, tcp)) {
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
  findings.push_back(memory(options));
  for (const auto& need : options.needs) {
    findings.push_back({need.is_met() ? Verdict::Good : Verdict::Bad, need.subject, need.text});
  }
  for (auto& finding : {products(options), attention(options), sleep_accuracy()}) {
    findings.push_back(finding);
  }
  for (auto& finding : network(options)) findings.push_back(std::move(finding));
  return findings;
}

}  // namespace isobar::exec
