#include "exec/run/nccl_transport.hpp"

#include "core/base/files.hpp"
#include "exec/model/device.hpp"
#include "exec/model/gpu.hpp"
#include "exec/model/stream.hpp"
#include "exec/run/message_header.hpp"
#include "exec/run/nccl.hpp"
#include "exec/run/tcp_transport.hpp"

#include <fmt/format.h>

#include <torch/torch.h>

#include <c10/core/DeviceGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <cstring>
#include <map>
#include <set>
#include <span>
#include <string>
#include <utility>

namespace isobar::exec {

namespace {

/// Hash of a text that is exact as a double.
double hash_number(const std::string& text)
{
  return static_cast<double>(std::stoull(fingerprint(text).substr(0, 13), nullptr, 16));
}

Reach reach_of(const NcclOptions& options)
{
  if (!is_gpu(options.device)) return {};
  int version = 0;
  try {
    version = nccl::version();
  } catch (const EnvironmentError&) {
    if (options.choice == TransportChoice::Nccl) throw;
  }
  return {static_cast<double>(version), hash_number(read_file("/proc/sys/kernel/random/boot_id")),
          hash_number(facts_of_gpu(options.device).place)};
}

/// Exchanges every rank's Reach; by rank.
std::vector<Reach> reach_of_ranks(std::size_t rank, std::size_t ranks, TcpWorld& world, const NcclOptions& options)
{
  constexpr std::size_t numbers = 3;
  const Reach own = reach_of(options);
  std::vector<double> sums(numbers * ranks);
  sums[numbers * rank] = own.nccl;
  sums[numbers * rank + 1] = own.machine;
  sums[numbers * rank + 2] = own.gpu;
  world.all_reduce_sum(std::span(sums), options.connect);
  std::vector<Reach> all;
  for (std::size_t i = 0; i < sums.size(); i += numbers) all.push_back({sums[i], sums[i + 1], sums[i + 2]});
  return all;
}

std::string title_of(const LinkName& link, std::size_t self)
{
  return link.from == self ? fmt::format("rank {}: send to rank {} (channel {})", self, link.to, link.channel)
                           : fmt::format("rank {}: receive from rank {} (channel {})", self, link.from, link.channel);
}

/// The sending end makes the communicator's id and sends it to the other.
nccl::Id shared_id(const LinkName& name, std::size_t rank, TcpLink& link, Seconds deadline)
{
  if (name.from == rank) {
    const nccl::Id id = nccl::new_id();
    link.send(id, {}, deadline);
    return id;
  }
  nccl::Id id{};
  const auto read_id = [&id](TcpLink::Bytes header) -> std::vector<std::span<std::byte>> {
    if (header.size() != id.size()) throw EnvironmentError("a message has no communicator id");
    std::memcpy(id.data(), header.data(), id.size());
    return {};
  };
  link.receive(read_id, deadline);
  return id;
}

class NcclTransport : public Transport {
 public:
  NcclTransport(std::size_t rank, TcpWorld& world, const Program& program, const NcclOptions& options,
                const TransferWaits& waits)
      : rank_(rank),
        world_(&world),
        program_(&program),
        options_(options),
        waits_(waits),
        tcp_(tcp_transport(world, program, waits, is_gpu(options.device)))
  {
  }

  /// Makes the channel's communicator. All ranks must take their channels in the same order, or two could deadlock.
  void connect(std::size_t channel)
  {
    const LinkName link = link_of(*program_, channel);
    const c10::DeviceGuard guard{at::Device(options_.device)};
    const auto id = shared_id(link, rank_, world_->link(link), options_.connect);
    const auto end = link.from == rank_ ? nccl::Pair::End::Sends : nccl::Pair::End::Receives;
    pairs_[channel] =
        std::make_unique<nccl::Pair>(id, end, title_of(link, rank_), world_->cancelled(), options_.connect);
  }

  void send(std::size_t channel, const Instruction& instruction, const Message& message) override
  {
    const auto pair = pairs_.find(channel);
    if (pair == pairs_.end()) {
      tcp_->send(channel, instruction, message);
      return;
    }
    Tensors kept;  // alive until they are sent
    for (const auto& tensor : message.tensors) kept.push_back(tensor.contiguous());
    const auto header = header_of(message);
    waits_.transfer(instruction, [&](const Deadline& deadline) {
      world_->link(link_of(*program_, channel)).send(std::as_bytes(std::span(header)), {}, deadline);
      transfer(*pair->second, kept, deadline);
    });
  }

  Message receive(std::size_t channel, const Instruction& instruction) override
  {
    const auto pair = pairs_.find(channel);
    if (pair == pairs_.end()) return tcp_->receive(channel, instruction);
    Message message;
    const auto allocate = [&](TcpLink::Bytes header) -> std::vector<std::span<std::byte>> {
      message = allocate_message(header, TensorMemory::Gpu, size_limit(instruction));
      return {};
    };
    waits_.transfer(instruction, [&](const Deadline& deadline) {
      world_->link(link_of(*program_, channel)).receive(allocate, deadline);
      transfer(*pair->second, message.tensors, deadline);
    });
    return message;
  }

  void all_reduce_sum(std::size_t channel, const Instruction& instruction, std::span<double> values) override
  {
    tcp_->all_reduce_sum(channel, instruction, values);
  }

  void cancel() noexcept override { tcp_->cancel(); }

 private:
  void transfer(nccl::Pair& pair, const Tensors& tensors, const Deadline& deadline) const
  {
    std::vector<nccl::Piece> pieces;
    for (const auto& tensor : tensors) {
      if (tensor.nbytes() > 0) pieces.push_back({tensor.mutable_data_ptr(), tensor.nbytes()});
    }
    const at::Device gpu(options_.device);
    const c10::Stream stream = c10::impl::VirtualGuardImpl(gpu.type()).getStream(gpu);
    pair.enqueue(pieces, gpu::handle_of(stream), deadline);
    const Event end = event_of_this_thread(options_.device);
    pair.wait([&end] { return end.passed(); }, deadline);
  }

  std::size_t rank_;
  TcpWorld* world_;
  const Program* program_;
  NcclOptions options_;
  TransferWaits waits_;
  std::unique_ptr<Transport> tcp_;
  std::map<std::size_t, std::unique_ptr<nccl::Pair>> pairs_;  // by channel
};

}  // namespace

std::unique_ptr<Transport> nccl_transport(std::size_t rank, TcpWorld& world, const Program& program,
                                          const NcclOptions& options, const TransferWaits& waits)
{
  auto transport = std::make_unique<NcclTransport>(rank, world, program, options, waits);
  const auto all = reach_of_ranks(rank, program.ranks(), world, options);
  std::set<std::string> reported;
  for (std::size_t channel = 0; channel < program.channels().size(); ++channel) {
    const Instruction first = first_instruction_of(program, program.channels()[channel]);
    if (!is_transfer(first.opcode)) continue;
    const LinkName link = link_of(program, channel);
    if (link.from != rank && link.to != rank) continue;
    // The data server has no stage and no GPU.
    const bool between_stages = link.from < options.stages && link.to < options.stages;
    const std::string why_not =
        between_stages ? why_not_nccl(all[link.from], all[link.to], options.choice) : "the data server";
    if (between_stages && !why_not.empty() && options.choice == TransportChoice::Nccl) {
      throw EnvironmentError(fmt::format("--transport nccl: rank {} to rank {}: {}", link.from, link.to, why_not));
    }
    if (why_not.empty()) transport->connect(channel);
    if (link.from != rank) continue;
    const std::string line =
        fmt::format("rank {} to rank {}, {}: {}", link.from, link.to,
                    first.payload == Payload::Activation ? "activations" : "gradients",
                    why_not.empty() ? "NCCL " + nccl::text_of_version(static_cast<int>(all[rank].nccl))
                                    : fmt::format("TCP ({})", why_not));
    if (reported.insert(line).second) options.info(line);
  }
  return transport;
}

}  // namespace isobar::exec
