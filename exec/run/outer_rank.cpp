#include "exec/run/outer_rank.hpp"

#include "core/base/clock.hpp"
#include "core/base/files.hpp"
#include "core/base/threads.hpp"
#include "core/text/quantity_text.hpp"
#include "exec/outer/codecs.hpp"
#include "exec/outer/connected_peers.hpp"
#include "exec/outer/exchange.hpp"
#include "exec/outer/outer_optimizer.hpp"
#include "exec/rank/rank_executor.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <ATen/ATen.h>

#include <algorithm>
#include <array>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <exception>
#include <map>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>

namespace isobar::exec {

namespace {

/// The values of some tensors of float32, one after the other.
void copy_from(const Tensors& tensors, std::vector<float>& values)
{
  std::size_t begin = 0;
  for (const auto& tensor : tensors) {
    const at::Tensor own = tensor.detach().to(at::kCPU).contiguous();
    const auto size = static_cast<std::size_t>(own.numel());
    values.resize(std::max(values.size(), begin + size));
    std::memcpy(values.data() + begin, own.const_data_ptr<float>(), size * sizeof(float));
    begin += size;
  }
}

void copy_to(std::vector<float>& values, const Tensors& tensors)
{
  const at::NoGradGuard no_gradients;
  std::size_t begin = 0;
  for (const auto& tensor : tensors) {
    const auto size = static_cast<std::size_t>(tensor.numel());
    tensor.detach().copy_(at::from_blob(values.data() + begin, tensor.sizes(), at::kFloat));
    begin += size;
  }
}

/// When a worker takes snapshots and updates of a fragment, as a number of steps of its round.
struct FragmentSteps {
  std::uint64_t snapshot = 0;
  std::uint64_t update = 0;
  bool is_in_next_round = false;
};

std::vector<FragmentSteps> steps_of_fragments(const Outer& outer, std::uint64_t steps)
{
  std::vector<FragmentSteps> all;
  for (const std::uint64_t snapshot : snapshot_steps(steps, outer.fragments)) {
    const std::uint64_t update = snapshot + outer.delay;
    all.push_back({snapshot, update > steps ? update - steps : update, update > steps});
  }
  return all;
}

/// Samples of a worker in a round, by which its outer gradients count.
double weight_of(const OuterWorker& worker, std::uint64_t micro_batch)
{
  const Plan& plan = worker.plan;
  const std::uint64_t samples = plan.samples.value_or(plan.goal.microbatches * plan.micro_batch.value_or(micro_batch));
  return static_cast<double>(worker.steps * samples);
}

/// The layers that a rank updates together with one rank of each other worker.
class Piece {
 public:
  Piece(const OuterRun& run, const SharedLayers& shared, std::size_t number)
      : run_(run),
        layers_(shared.layers),
        group_{.workers = {}, .weight = weight_of(run.plan.workers[run.worker], run.micro_batch)}
  {
    for (std::size_t worker = 0; worker < run.plan.workers.size(); ++worker) group_.workers.push_back(worker);
    group_.limit = run.patience;
    group_.threads = run.threads;
    std::vector<Endpoint> endpoints = run.addresses;
    for (auto& endpoint : endpoints) endpoint.port = static_cast<std::uint16_t>(endpoint.port + number);
    TcpOptions tcp = tcp_options_of(run.network, run.secret, run.worker, endpoints);
    tcp.connections = run.connections;
    tcp.run_id = fmt::format("rounds {} {}", fingerprint(outer_plan_to_json(run.plan)), number);
    tcp.connect_deadline = run.connect;
    Endpoint own = endpoints[run.worker];
    if (tcp.bind_address) own.host = *tcp.bind_address;
    peers_ = std::make_unique<ConnectedPeers>(run.worker, endpoints, static_cast<std::uint32_t>(number), tcp,
                                              TcpListener(own));
    thread_ = start_thread([this] { work(); });
  }
  Piece(const Piece&) = delete;
  Piece& operator=(const Piece&) = delete;
  ~Piece()
  {
    {
      const std::lock_guard lock(mutex_);
      is_over_ = true;
    }
    changed_.notify_all();
  }

  /// Notes the parameters from which the first round begins.
  void begin(const std::function<Tensors(std::size_t layer)>& parameters)
  {
    const Outer& outer = run_.plan.outer;
    for (std::size_t f = 0; f < outer.fragments; ++f) {
      Fragment& fragment = fragments_.emplace_back();
      for (const std::size_t layer : layers_) {
        if (layer % outer.fragments != f) continue;
        for (auto& tensor : parameters(layer)) fragment.tensors.push_back(std::move(tensor));
      }
      copy_from(fragment.tensors, fragment.own);
      const std::size_t values = fragment.own.size();
      const OuterRule rule{static_cast<float>(outer.learning_rate), static_cast<float>(outer.momentum)};
      fragment.outer.emplace(fragment.own, std::vector<float>(values, 0), rule, run_.threads);
      fragment.checksum = fragment.outer->checksum();
      fragment.gradient.resize(values);
      fragment.encoded.resize(encoded_bytes(outer.codec, values));
      if (is_sparse(outer.codec)) fragment.feedback.emplace(outer.codec, std::vector<float>(values, 0));
    }
  }

  bool has_values(std::size_t fragment) const { return !fragments_[fragment].gradient.empty(); }

  /// Encodes how far the parameters have moved, and has it summed up meanwhile.
  void take_snapshot(std::size_t number)
  {
    Fragment& fragment = fragments_[number];
    copy_from(fragment.tensors, fragment.own);
    outer_gradient(fragment.outer->parameters(), fragment.own, fragment.gradient, run_.threads);
    if (fragment.feedback) {
      fragment.feedback->encode(fragment.gradient, fragment.encoded);
    } else {
      encode(run_.plan.outer.codec, fragment.gradient, fragment.encoded);
    }
    const std::lock_guard lock(mutex_);
    fragment.is_under_way = true;
    waiting_.push_back(number);
    changed_.notify_all();
  }

  /// Waits for the update of a fragment that is under way, and takes it.
  void take_update(std::size_t number)
  {
    Fragment& fragment = fragments_[number];
    {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [&] { return failure_ || !fragment.is_under_way; });
      if (failure_) std::rethrow_exception(failure_);
    }
    if (run_.plan.outer.mixing > 0) copy_from(fragment.tensors, fragment.own);
    fragment.checksum = fragment.outer->checksum();
    mix(fragment.own, fragment.outer->parameters(), static_cast<float>(run_.plan.outer.mixing), run_.threads);
    copy_to(fragment.own, fragment.tensors);
  }

  /// Of the outer parameters of a fragment that were taken last.
  std::uint32_t checksum(std::size_t fragment) const { return fragments_[fragment].checksum; }
  /// How many workers the last sync had, and what all have sent and received.
  std::pair<std::size_t, PeerTraffic> state()
  {
    const std::lock_guard lock(mutex_);
    return {workers_, traffic_};
  }

 private:
  struct Fragment {
    Tensors tensors;
    std::vector<float> own;
    std::vector<float> gradient;
    std::vector<std::byte> encoded;
    std::optional<OuterOptimizer> outer;
    std::optional<ErrorFeedback> feedback;
    bool is_under_way = false;   // and not updated yet
    std::uint32_t checksum = 0;  // of the outer parameters that were taken last
  };

  const std::string& name_of(std::size_t worker) const { return run_.plan.workers[worker].name; }

  /// The thread of the piece: syncs fragments, one after the other.
  void work()
  {
    for (;;) {
      std::size_t number = 0;
      {
        std::unique_lock lock(mutex_);
        changed_.wait(lock, [&] { return is_over_ || !waiting_.empty(); });
        if (waiting_.empty()) return;
        number = waiting_.front();
        waiting_.pop_front();
      }
      std::exception_ptr failure;
      try {
        sync(fragments_[number]);
      } catch (...) {
        failure = std::current_exception();
      }
      const std::lock_guard lock(mutex_);
      if (failure) failure_ = failure;
      workers_ = group_.workers.size();
      traffic_ = peers_->traffic();
      fragments_[number].is_under_way = false;
      changed_.notify_all();
      if (failure) return;
    }
  }

  void sync(Fragment& fragment)
  {
    for (;;) {
      try {
        exchange_mean(*peers_, run_.plan.outer.codec, group_, fragment.encoded, fragment.gradient);
        break;
      } catch (const WorkersFailed& lost) {
        go_on_without(lost.workers(), lost.what());
      }
    }
    fragment.outer->update(0, fragment.gradient);
    compare_checksums(fragment.outer->checksum());
  }

  void go_on_without(const std::vector<std::size_t>& lost, const std::string& why)
  {
    const std::size_t before = group_.workers.size();
    std::vector<std::string> names;
    for (const std::size_t worker : lost) {
      names.push_back(name_of(worker));
      std::erase(group_.workers, worker);
    }
    const std::string which = fmt::format("{}", fmt::join(names, ", "));
    if (2 * group_.workers.size() <= before) {
      throw EnvironmentError(fmt::format("rounds: {} of {} workers are left, no more than half, without {}: {}",
                                         group_.workers.size(), before, which, why));
    }
    run_.info(
        fmt::format("rounds: {} is lost ({}); {} of {} workers continue", which, why, group_.workers.size(), before));
  }

  /// @throws EnvironmentError naming a worker whose outer parameters are others.
  void compare_checksums(std::uint32_t own)
  {
    std::vector<std::uint32_t> theirs(group_.workers.size(), own);
    std::vector<PeerTransfer> transfers;
    for (std::size_t i = 0; i < group_.workers.size(); ++i) {
      if (group_.workers[i] == run_.worker) continue;
      transfers.push_back(
          {group_.workers[i], {std::as_bytes(std::span(&own, 1))}, {std::as_writable_bytes(std::span(&theirs[i], 1))}});
    }
    peers_->exchange(transfers, group_.limit);
    for (std::size_t i = 0; i < group_.workers.size(); ++i) {
      const auto found = std::ranges::find(transfers, group_.workers[i], &PeerTransfer::worker);
      if (found == transfers.end() || found->failure) continue;  // the next sync finds it lost
      if (theirs[i] == own) continue;
      throw EnvironmentError(fmt::format("rounds: worker {} has other outer parameters (checksum {:08x}, here {:08x})",
                                         name_of(group_.workers[i]), theirs[i], own));
    }
  }

  const OuterRun& run_;
  std::vector<std::size_t> layers_;
  std::unique_ptr<ConnectedPeers> peers_;
  ExchangeGroup group_;  // of the thread
  std::deque<Fragment> fragments_;

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::size_t> waiting_;  // fragments
  bool is_over_ = false;
  std::exception_ptr failure_;
  std::size_t workers_ = 0;
  PeerTraffic traffic_;
  std::jthread thread_;  // the last member: it ends first
};

}  // namespace

std::string why_not_run_in_rounds(const Plan& plan, const Workload& workload)
{
  for (const auto& stage : plan.stages) {
    if (!stage.is_on_one_device()) return "has replicas or shards of a stage, which isobar run does not run in rounds";
    if (!stage.residence.is_on_device())
      return "has layers in a machine's memory, which isobar run does not run in rounds";
  }
  for (const auto& layer : workload.layers) {
    if (!layer.has_tied_copy) continue;
    return fmt::format(
        "has the matrix of layer {} on two devices, which isobar run does not run in rounds; write tied: "
        "apart in the workload, or put both on one",
        shown(layer.name));
  }
  return "";
}

std::vector<SharedLayers> shared_layers(const std::vector<OuterWorker>& workers, std::size_t layers)
{
  std::vector<std::vector<std::size_t>> rank_of_layer;
  for (const auto& worker : workers) {
    const auto devices = devices_of(worker.plan);
    auto& ranks = rank_of_layer.emplace_back(layers, 0);
    for (const auto& stage : worker.plan.stages) {
      const auto rank = static_cast<std::size_t>(std::ranges::find(devices, stage.device()) - devices.begin());
      for (std::size_t layer = stage.first_layer; layer <= stage.last_layer; ++layer) ranks[layer] = rank;
    }
  }
  std::vector<SharedLayers> pieces;
  for (std::size_t layer = 0; layer < layers; ++layer) {
    std::vector<std::size_t> ranks;
    for (const auto& of_worker : rank_of_layer) ranks.push_back(of_worker[layer]);
    auto found = std::ranges::find(pieces, ranks, &SharedLayers::ranks);
    if (found == pieces.end()) found = pieces.insert(pieces.end(), {ranks, {}});
    found->layers.push_back(layer);
  }
  return pieces;
}

class OuterRank::Impl {
 public:
  Impl(const OuterRun& run, std::size_t rank, RankExecutor& executor)
      : run_(run),
        steps_(run.plan.workers[run.worker].steps),
        fragments_(steps_of_fragments(run.plan.outer, steps_)),
        round_began_(steady_time())
  {
    const std::size_t layers = run.plan.workers[run.worker].plan.stages.back().last_layer + 1;
    const auto shared = shared_layers(run.plan.workers, layers);
    for (std::size_t number = 0; number < shared.size(); ++number) {
      if (shared[number].ranks[run.worker] != rank) continue;
      pieces_.push_back(std::make_unique<Piece>(run, shared[number], number));
      reports_ = reports_ || number == 0;
    }
    executor.with_models([&](std::size_t /*stage*/, StageModel& model) { models_.push_back(&model); });
    const auto& stages = run.plan.workers[run.worker].plan.stages;
    const auto parameters = [&](std::size_t layer) {
      std::size_t own = 0;  // among the rank's stages
      for (const auto& stage : stages) {
        const auto devices = devices_of(run.plan.workers[run.worker].plan);
        if (stage.device() != devices[rank]) continue;
        if (stage.first_layer <= layer && layer <= stage.last_layer) return models_.at(own)->parameters_of(layer);
        ++own;
      }
      throw std::logic_error("a layer of another rank");
    };
    for (auto& piece : pieces_) piece->begin(parameters);
    round_began_ = steady_time();
  }

  void step_ended(std::uint64_t step, RankExecutor& executor)
  {
    const std::uint64_t done = step % steps_ + 1;
    executor.with_models([](std::size_t, StageModel&) {});  // waits for the device
    const Seconds begin = steady_time();
    for (std::size_t f = 0; f < fragments_.size(); ++f) {
      if (fragments_[f].snapshot != done) continue;
      for (auto& piece : pieces_) {
        if (piece->has_values(f)) piece->take_snapshot(f);
      }
    }
    for (std::size_t f = 0; f < fragments_.size(); ++f) {
      if (fragments_[f].update != done || (fragments_[f].is_in_next_round && step < steps_)) continue;
      for (auto& piece : pieces_) {
        if (!piece->has_values(f)) continue;
        piece->take_update(f);
      }
    }
    waited_ += steady_time() - begin;
    if (done == steps_) end_round(step);
  }

 private:
  void end_round(std::uint64_t step)
  {
    const Seconds now = steady_time();
    if (reports_) {
      std::uint64_t sent = 0;
      for (const auto& piece : pieces_) sent += piece->state().second.sent;
      run_.info(
          fmt::format("round {}: {:.6g} s, {:.6g} s of them for other workers, of which {} were there; predicted "
                      "{:.6g} s; {} sent so far by these layers; checksum {:08x}",
                      step / steps_ + 1, (now - round_began_).value, waited_.value, pieces_.front()->state().first,
                      run_.plan.predicted.round_time.value, text_of(Bytes(static_cast<double>(sent))),
                      pieces_.front()->checksum(0)));
    }
    round_began_ = now;
    waited_ = Seconds(0);
  }

  const OuterRun& run_;
  std::uint64_t steps_;
  std::vector<FragmentSteps> fragments_;
  std::vector<StageModel*> models_;  // of the rank's stages
  std::vector<std::unique_ptr<Piece>> pieces_;
  bool reports_ = false;  // it has piece 0
  Seconds round_began_;
  Seconds waited_;
};

OuterRank::OuterRank(const OuterRun& run, std::size_t rank, RankExecutor& executor)
    : impl_(std::make_unique<Impl>(run, rank, executor))
{
}

OuterRank::~OuterRank() = default;

void OuterRank::step_ended(std::uint64_t step, RankExecutor& executor)
{
  impl_->step_ended(step, executor);
}

}  // namespace isobar::exec
