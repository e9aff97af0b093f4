#pragma once

#include "core/cluster/cluster.hpp"
#include "core/model/workload.hpp"
#include "core/order/order.hpp"
#include "core/plan/operator_plan.hpp"
#include "core/plan/plan.hpp"
#include "core/program/program.hpp"
#include "core/spmd/pieces.hpp"

#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <vector>

namespace isobar::schedules {

/// The Program of a plan whose devices divide operators (core/plan/operator_plan.hpp). Stages are the parts.
///
/// Lanes of each rank, where it has them, in this order:
/// - "compute": the tasks of the order, then an Update for each part of its group, the last part first.
/// - "collectives", of the ranks of a replica: before the forward of a micro-batch through a part its reforms, after
///   the backward the conjugates, which carry gradients back. In the order of the tasks; parameters are reformed before
///   the first forward through a part, and their gradients are added up after the last backward, after other gradients.
///   A reform waits for the forward through the part before, those of parameters for their Update a period back; a
///   forward waits for the reforms before it; a conjugate for its backward, and the backward through the part before
///   for the conjugates.
/// - "replicas", of the ranks at a position of all replicas of a group: for each part, the last one first, an AllReduce
///   of the gradients of the parameters that are made in it, as the rank stores them; none where these are nothing. It
///   waits for the last backward of the part and the collectives that bring such gradients; the Update of the part
///   waits for it.
/// - "sync": what all ranks need to know of all gradients, if the workload clips or scales them.
/// - "send activation Q", "receive activation Q", "send gradient Q", "receive gradient Q": to or from the rank at
///   position Q of the same replica in the next group, or the one before, where slices of tensors that pass overlap: a
///   message for each micro-batch, in the order in which the sender makes them. It waits for the forward through the
///   last part of the group, or the backward through the first one with its conjugates. What comes first in the other
///   group waits for the messages. Where there are more than three for a rank, one waits for the one of the third lane
///   before, since an instruction waits for few lanes.
///
/// `place` of a collective is the index in OperatorPlan::reforms; of an AllReduce that adds up a bucket of gradients,
/// of its last one, whose part is its stage. Its layers are those of all parts between the bucket's parameters. It
/// comes where the conjugate of its last parameter would. Free reforms are part of the tasks.
///
/// Memory of a rank: parameters as they are stored, with gradients and optimizer; what is kept from a forward to its
/// backward: tensors that operators keep or later parts read, reformed tensors, and masks; what another group sends,
/// from its arrival on; gathered parameters from their reform until the last backward; gradients between parts.
///
/// O(parts x micro-batches + ranks x parts) memory.
class OperatorProgram : public Program {
 public:
  /// `orders`, by rank, are the same for all ranks of a group: forwards and backwards, or forwards only, of each of its
  /// parts and micro-batch.
  OperatorProgram(const Plan& plan, const Workload& workload, const Cluster& cluster, const std::vector<Order>& orders);

  std::size_t ranks() const override { return lanes_.size(); }
  const std::vector<Lane>& lanes(std::size_t rank) const override { return lanes_.at(rank); }
  const std::vector<Channel>& channels() const override { return channels_; }
  const std::vector<std::vector<std::size_t>>& grids() const override { return grids_; }
  Bytes resident(std::size_t rank, Tier tier) const override;
  std::uint64_t length(std::size_t rank, LaneId lane) const override;
  Instruction at(std::size_t rank, LaneId lane, std::uint64_t position) const override;

 private:
  /// What a rank does and holds in a part.
  struct PartWork {
    Seconds forward, backward, update;
    Bytes kept;                // from the forward to the backward of a micro-batch
    Bytes reformed;            // tensors, from their reforms to the backward
    Bytes received;            // likewise, from their arrival
    Bytes gathered;            // parameters, from their reforms to the last backward
    Bytes gradients_made;      // that a backward leaves for others
    Bytes gradients_taken;     // that it needs, and others left
    Bytes gathered_gradients;  // of gathered parameters, from the first backward to their conjugates
  };
  /// What a reform carries on a rank.
  struct ReformSizes {
    Bytes size, result;                    // as of Instruction
    Bytes gradient_size, gradient_result;  // of the conjugate
    Bytes acquired;                        // the reformed tensor
    Bytes gradient_acquired;               // the gradient of the tensor, if the conjugate makes it first
    Bytes gradient_released;               // that of the reformed tensor
  };
  struct RankTable {
    std::vector<PartWork> parts;
    std::vector<ReformSizes> reforms;
    Bytes resident;
  };
  /// The lanes of the ranks of a group, without times, sizes and memory.
  struct GroupLanes {
    std::vector<Instruction> compute;
    std::vector<Instruction> collectives;
    std::vector<Instruction> facts;                  // one, or none
    std::vector<std::vector<Instruction>> sums;      // by position, with their sizes
    std::vector<std::vector<std::uint64_t>> summed;  // by position and part: how many end with that of the part
  };
  /// The lanes of a rank beside "compute"; 0: it has none.
  struct RankLanes {
    LaneId collectives = 0;
    LaneId sums = 0;
    LaneId facts = 0;
    LaneId first_transfer = 0;     // the last lanes are transfers
    std::vector<LaneId> arrivals;  // of activations
    std::vector<LaneId> gradient_arrivals;
  };
  /// A lane of messages to or from another group.
  struct TransferLane {
    const std::vector<Instruction>* instructions = nullptr;
    Bytes size;
    std::optional<LaneId> after;  // whose message for the same micro-batch comes before
  };
  /// The messages between a group and the next one, without lanes and sizes.
  struct Boundary {
    std::vector<Instruction> sent, received;
    std::vector<Instruction> gradients_sent, gradients_received;
  };

  void add_tasks(std::size_t group, const Order& order);
  void add_collectives(std::size_t group, const Order& order);
  void add_sums(std::size_t group, const Order& order, const Plan& plan, const spmd::Pieces& pieces);
  void add_facts_sync();
  void add_transfers(const std::vector<spmd::Pieces>& pieces);
  Boundary boundary_after(std::size_t group) const;
  /// Adds the lanes and channel of a Send to a Recv of these ranks, with the position of the other one each.
  void connect_transfer(const char* what, const Boundary& boundary, std::size_t from, std::size_t to, Bytes size);
  /// Adds the waits for what arrives for a micro-batch, the number `index` of those lanes.
  static void wait_for(Instruction& instruction, const std::vector<LaneId>& arrivals, std::uint64_t index);
  /// Adds a channel of these ranks, and a lane to each.
  Channel& connect(const std::string& name, LaneId RankLanes::*lane, const std::vector<std::size_t>& ranks);
  /// The reform of a task at a position of the group's order, if it is a collective for it.
  std::optional<Instruction> collective_of(std::size_t reform, std::size_t group, const Order& order,
                                           std::uint64_t position) const;
  std::uint64_t update_position(const Order& order, std::size_t part) const;
  RankTable table_of(const Workload& workload, const spmd::Pieces& pieces, const OperatorPlace& place,
                     const spmd::DeviceRates& rates) const;
  void add_reforms(RankTable& table, const spmd::Pieces& pieces, const OperatorPlace& place) const;
  void add_gradients(RankTable& table, const spmd::Pieces& pieces, const OperatorPlace& place) const;
  Instruction instruction_of(std::size_t part, Opcode opcode, LaneId lane, std::uint64_t microbatch) const;
  const std::vector<Instruction>& instructions_of(std::size_t rank, LaneId lane) const;
  /// The collective of a reform in a group; none if it is free.
  std::optional<Opcode> opcode_of(spmd::ReformKind kind, std::size_t group) const;
  /// Whether a forward is through the first part of its group, a backward through the last one, or a reform before the
  /// first one.
  bool is_outermost(const Instruction& instruction) const;
  /// The number of its micro-batch among those that pass the part.
  std::uint64_t index_of(const Instruction& instruction) const;
  /// Whether the tensor of a reform comes from the group before.
  bool is_received(const spmd::PlacedReform& reform) const;
  std::size_t first_part(std::size_t group) const { return plan_.groups[group].first_part; }

  OperatorPlan plan_;
  std::vector<std::optional<std::size_t>> bucket_of_;  // by reform: the bucket of which it is the last
  bool trains_ = false;                                // has backwards
  std::vector<std::vector<Lane>> lanes_;
  std::vector<Channel> channels_;
  std::vector<std::vector<std::size_t>> grids_;
  std::vector<RankLanes> lanes_of_;  // by rank
  std::vector<RankTable> tables_;    // by rank
  std::vector<Order> orders_;        // by group
  std::vector<GroupLanes> groups_;
  std::deque<Boundary> boundaries_;                   // after each group but the last
  std::vector<std::vector<TransferLane>> transfers_;  // by rank, from RankLanes::first_transfer on
  // The micro-batch, by part:
  std::vector<std::uint64_t> first_forward_;
  std::vector<std::uint64_t> first_backward_;
  std::vector<std::uint64_t> last_backward_;
};

}  // namespace isobar::schedules
