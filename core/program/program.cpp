#include "core/program/program.hpp"

#include "core/errors.hpp"
#include "core/names.hpp"

namespace isobar {

namespace {

constexpr NameTable<Opcode, 18> opcodes = {{{Opcode::Forward, "Forward"},
                                            {Opcode::Backward, "Backward"},
                                            {Opcode::BackwardInput, "BackwardInput"},
                                            {Opcode::BackwardWeight, "BackwardWeight"},
                                            {Opcode::Update, "Update"},
                                            {Opcode::Encode, "Encode"},
                                            {Opcode::OuterUpdate, "OuterUpdate"},
                                            {Opcode::Send, "Send"},
                                            {Opcode::Recv, "Recv"},
                                            {Opcode::Load, "Load"},
                                            {Opcode::Store, "Store"},
                                            {Opcode::Read, "Read"},
                                            {Opcode::Write, "Write"},
                                            {Opcode::AllReduce, "AllReduce"},
                                            {Opcode::ReduceScatter, "ReduceScatter"},
                                            {Opcode::AllGather, "AllGather"},
                                            {Opcode::AllToAll, "AllToAll"},
                                            {Opcode::Broadcast, "Broadcast"}}};
constexpr NameTable<Payload, 8> payloads = {{{Payload::Activation, "activation"},
                                             {Payload::Gradient, "gradient"},
                                             {Payload::ParameterGradient, "parameter gradient"},
                                             {Payload::TiedGradient, "tied gradient"},
                                             {Payload::Parameter, "parameter"},
                                             {Payload::OuterGradient, "outer gradient"},
                                             {Payload::GradientFacts, "gradient facts"},
                                             {Payload::Optimizer, "optimizer"}}};
constexpr NameTable<Tier, tier_count> tiers = {{{Tier::Device, "device"}, {Tier::Host, "host"}, {Tier::Disk, "disk"}}};
constexpr NameTable<Engine, 7> engines = {{{Engine::Device, "device"},
                                           {Engine::Network, "network"},
                                           {Engine::Host, "host"},
                                           {Engine::CopyIn, "copy in"},
                                           {Engine::CopyOut, "copy out"},
                                           {Engine::DiskRead, "disk read"},
                                           {Engine::DiskWrite, "disk write"}}};
constexpr NameTable<Algorithm, 5> algorithms = {{{Algorithm::Ring, "ring"},
                                                 {Algorithm::Hierarchical, "hierarchical"},
                                                 {Algorithm::Tree, "tree"},
                                                 {Algorithm::Direct, "direct"},
                                                 {Algorithm::Server, "server"}}};

}  // namespace

std::string_view name_of(Opcode opcode)
{
  return name_in(opcodes, opcode);
}
std::string_view name_of(Payload payload)
{
  return name_in(payloads, payload);
}
std::string_view name_of(Tier tier)
{
  return name_in(tiers, tier);
}
std::string_view name_of(Engine engine)
{
  return name_in(engines, engine);
}
std::string_view name_of(Algorithm algorithm)
{
  return name_in(algorithms, algorithm);
}
std::optional<Algorithm> algorithm_from_name(std::string_view name)
{
  return value_in(algorithms, name);
}
std::vector<std::string> algorithm_names()
{
  return names_in(algorithms);
}
std::optional<Tier> tier_from_name(std::string_view name)
{
  return value_in(tiers, name);
}
std::optional<Opcode> opcode_from_name(std::string_view name)
{
  return value_in(opcodes, name);
}

const End& other_end(const Channel& channel, std::size_t rank, LaneId lane)
{
  ensure(channel.ends.size() == 2, "a transfer has two ends");
  const End self{rank, lane};
  if (channel.ends[0] == self) return channel.ends[1];
  ensure(channel.ends[1] == self, "a lane that is no end of its channel");
  return channel.ends[0];
}

const std::vector<std::vector<std::uint32_t>>& Program::tied_stages() const
{
  static const std::vector<std::vector<std::uint32_t>> none;
  return none;
}

const std::vector<std::vector<std::size_t>>& Program::grids() const
{
  static const std::vector<std::vector<std::size_t>> none;
  return none;
}

}  // namespace isobar
