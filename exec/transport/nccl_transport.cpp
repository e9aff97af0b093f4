#include "exec/transport/nccl_transport.hpp"

#include "core/base/files.hpp"
#include "exec/device/device.hpp"
#include "exec/device/gpu.hpp"
#include "exec/device/stream.hpp"
#include "exec/device/tensor_slices.hpp"
#include "exec/transport/message_header.hpp"
#include "exec/transport/nccl.hpp"
#include "exec/transport/tcp_transport.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <ATen/ATen.h>

#include <c10/core/DeviceGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>
#include <array>
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

/// Why a channel between ranks does not use NCCL; "" if it does.
std::string why_not_nccl(const std::vector<std::size_t>& ranks, const std::vector<Reach>& reach,
                         const NcclOptions& options)
{
  // The data server, which only sends, has no stage and no GPU.
  if (ranks.front() >= options.stages) return "the data server";
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    for (std::size_t j = i + 1; j < ranks.size(); ++j) {
      auto reason = why_not_nccl(reach[ranks[i]], reach[ranks[j]], options.choice);
      if (!reason.empty()) return reason;
    }
  }
  return "";
}

std::string title_of(const LinkName& link, std::size_t self)
{
  return link.from == self ? fmt::format("rank {}: send to rank {} (channel {})", self, link.to, link.channel)
                           : fmt::format("rank {}: receive from rank {} (channel {})", self, link.from, link.channel);
}

/// The first rank of a group makes the communicator's id; the others get it as the sum of what all give.
nccl::Id shared_id(std::size_t channel, bool is_first, TcpWorld& world, Seconds deadline)
{
  std::array<double, sizeof(nccl::Id)> bytes = {};
  if (is_first) {
    const nccl::Id id = nccl::new_id();
    std::transform(id.begin(), id.end(), bytes.begin(),
                   [](std::byte byte) { return static_cast<double>(std::to_integer<unsigned>(byte)); });
  }
  world.collective(Opcode::AllReduce, static_cast<std::uint32_t>(channel), TcpWorld::values_of<double>({bytes}),
                   deadline);
  nccl::Id id{};
  std::transform(bytes.begin(), bytes.end(), id.begin(), [](double byte) { return static_cast<std::byte>(byte); });
  return id;
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

  /// Makes a channel's communicator. All ranks must take their channels in the same order, or two could deadlock.
  void connect(std::size_t channel, bool is_of_transfers)
  {
    const auto& ends = program_->channels()[channel].ends;
    const auto own = std::find_if(ends.begin(), ends.end(), [this](const End& end) { return end.rank == rank_; });
    const c10::DeviceGuard guard{at::Device(options_.device)};
    nccl::Id id;
    std::string title;
    if (is_of_transfers) {
      const LinkName link = link_of(*program_, channel);
      id = shared_id(link, rank_, world_->link(link), options_.connect);
      title = title_of(link, rank_);
    } else {
      id = shared_id(channel, own == ends.begin(), *world_, options_.connect);
      title = fmt::format("rank {}: all-reduce (channel {})", rank_, channel);
    }
    communicators_[channel] =
        std::make_unique<nccl::Communicator>(id, static_cast<std::size_t>(own - ends.begin()), ends.size(),
                                             std::move(title), world_->cancelled(), options_.connect);
  }

  void send(std::size_t channel, const Instruction& instruction, const Message& message) override
  {
    const auto found = communicators_.find(channel);
    if (found == communicators_.end()) {
      tcp_->send(channel, instruction, message);
      return;
    }
    Tensors kept;  // alive until they are sent
    for (const auto& tensor : message.tensors) kept.push_back(tensor.contiguous());
    const auto header = header_of(message);
    waits_.transfer(instruction, [&](const Deadline& deadline) {
      world_->link(link_of(*program_, channel)).send(std::as_bytes(std::span(header)), {}, deadline);
      found->second->enqueue_transfer(pieces_of(kept), stream(), deadline);
      wait(*found->second, deadline);
    });
  }

  Message receive(std::size_t channel, const Instruction& instruction) override
  {
    const auto found = communicators_.find(channel);
    if (found == communicators_.end()) return tcp_->receive(channel, instruction);
    Message message;
    const auto allocate = [&](TcpLink::Bytes header) -> std::vector<std::span<std::byte>> {
      message = allocate_message(header, TensorMemory::Gpu, size_limit(instruction));
      return {};
    };
    waits_.transfer(instruction, [&](const Deadline& deadline) {
      world_->link(link_of(*program_, channel)).receive(allocate, deadline);
      found->second->enqueue_transfer(pieces_of(message.tensors), stream(), deadline);
      wait(*found->second, deadline);
    });
    return message;
  }

  void collective(std::size_t channel, const Instruction& instruction, const Tensors& tensors) override
  {
    const auto found = communicators_.find(channel);
    if (found == communicators_.end()) {
      tcp_->collective(channel, instruction, tensors);
      return;
    }
    waits_.transfer(instruction, [&](const Deadline& deadline) {
      // Once all ranks are here, none of their kernels waits for work that a host has yet to launch.
      world_->collective(Opcode::AllReduce, static_cast<std::uint32_t>(channel), {}, deadline);
      enqueue(*found->second, channel, instruction.opcode, tensors, deadline);
      wait(*found->second, deadline);
    });
  }

  void exchange(std::size_t channel, const Instruction& instruction, const Tensors& outgoing,
                const Tensors& incoming) override
  {
    const auto found = communicators_.find(channel);
    if (found == communicators_.end()) {
      tcp_->exchange(channel, instruction, outgoing, incoming);
      return;
    }
    const auto all_pieces_of = [](const Tensors& tensors) {
      std::vector<nccl::Piece> pieces;
      for (const auto& tensor : tensors) pieces.push_back({tensor.mutable_data_ptr(), tensor.nbytes()});
      return pieces;
    };
    waits_.transfer(instruction, [&](const Deadline& deadline) {
      world_->collective(Opcode::AllReduce, static_cast<std::uint32_t>(channel), {}, deadline);  // as above
      found->second->enqueue_exchange(all_pieces_of(outgoing), all_pieces_of(incoming), stream(), deadline);
      wait(*found->second, deadline);
    });
  }

  void cancel() noexcept override { tcp_->cancel(); }

 private:
  void enqueue(nccl::Communicator& communicator, std::size_t channel, Opcode opcode, const Tensors& tensors,
               const Deadline& deadline) const
  {
    if (opcode == Opcode::AllReduce) {
      communicator.enqueue_sums(pieces_of(tensors), type_of(tensors), stream(), deadline);
      return;
    }
    const Channel& of = program_->channels().at(channel);
    std::vector<std::vector<nccl::Piece>> parts;
    for (std::size_t end = 0; end < of.ends.size(); ++end) parts.push_back(pieces_of(part_of(of, end, tensors)));
    ensure(opcode == Opcode::ReduceScatter || opcode == Opcode::AllGather, "a collective that no program has");
    opcode == Opcode::ReduceScatter ? communicator.enqueue_sums_of_parts(parts, stream(), deadline)
                                    : communicator.enqueue_gather(parts, stream(), deadline);
  }

  static nccl::Number type_of(const Tensors& tensors)
  {
    if (tensors.empty()) return nccl::Number::Float32;
    switch (tensors.front().scalar_type()) {
      case at::kBFloat16:
        return nccl::Number::BFloat16;
      case at::kHalf:
        return nccl::Number::Float16;
      default:
        return nccl::Number::Float32;
    }
  }

  static std::vector<nccl::Piece> pieces_of(const Tensors& tensors)
  {
    std::vector<nccl::Piece> pieces;
    for (const auto& tensor : tensors) {
      if (tensor.nbytes() > 0) pieces.push_back({tensor.mutable_data_ptr(), tensor.nbytes()});
    }
    return pieces;
  }

  /// The handle of the calling thread's stream.
  void* stream() const
  {
    const at::Device gpu(options_.device);
    return gpu::handle_of(c10::impl::VirtualGuardImpl(gpu.type()).getStream(gpu));
  }

  void wait(nccl::Communicator& communicator, const Deadline& deadline) const
  {
    const Event end = event_of_this_thread(options_.device);
    communicator.wait([&end] { return end.passed(); }, deadline);
  }

  std::size_t rank_;
  TcpWorld* world_;
  const Program* program_;
  NcclOptions options_;
  TransferWaits waits_;
  std::unique_ptr<Transport> tcp_;
  std::map<std::size_t, std::unique_ptr<nccl::Communicator>> communicators_;  // by channel
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
    if (first.payload == Payload::GradientFacts) continue;  // which are on the host
    std::vector<std::size_t> ranks;
    for (const End& end : program.channels()[channel].ends) ranks.push_back(end.rank);
    if (std::find(ranks.begin(), ranks.end(), rank) == ranks.end()) continue;
    const bool is_of_transfers = is_transfer(first.opcode);
    const std::string name = is_of_transfers ? fmt::format("rank {} to rank {}", ranks.front(), ranks.back())
                                             : fmt::format("ranks {}", fmt::join(ranks, ", "));
    const std::string why_not = why_not_nccl(ranks, all, options);
    const bool has_data_server = ranks.front() >= options.stages;
    if (!has_data_server && !why_not.empty() && options.choice == TransportChoice::Nccl) {
      throw EnvironmentError(fmt::format("--transport nccl: {}: {}", name, why_not));
    }
    if (why_not.empty()) transport->connect(channel, is_of_transfers);
    if (ranks.front() != rank) continue;
    const char* what = first.payload == Payload::Activation  ? "activations"
                       : first.payload == Payload::Parameter ? "parameters"
                       : first.payload == Payload::Gradient  ? "gradients"
                                                             : "gradients of parameters";
    const std::string line =
        fmt::format("{}, {}: {}", name, what,
                    why_not.empty() ? "NCCL " + nccl::text_of_version(static_cast<int>(all[rank].nccl))
                                    : fmt::format("TCP ({})", why_not));
    if (reported.insert(line).second) options.info(line);
  }
  return transport;
}

}  // namespace isobar::exec
