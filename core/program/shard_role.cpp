#include "core/program/shard_role.hpp"

#include <array>

namespace isobar {

namespace {

struct RoleRecord {
  std::string_view name;
  ShardPass pass;
  bool is_before;
  bool needs_arrival;
};

/// By ShardRole.
constexpr std::array<RoleRecord, shard_roles> roles = {{
    {"sum for norms", ShardPass::Forward, true, true},
    {"gather inputs", ShardPass::Forward, true, true},
    {"gather weights", ShardPass::Forward, true, false},
    {"sum activations", ShardPass::Forward, false, false},
    {"gather loss", ShardPass::Forward, false, false},
    {"gather gradients", ShardPass::InputGradient, true, true},
    {"gather weights again", ShardPass::InputGradient, true, false},
    {"gather kept inputs", ShardPass::InputGradient, true, false},
    {"sum gradients", ShardPass::InputGradient, false, false},
    {"sum gradients for norms", ShardPass::InputGradient, false, false},
    {"gather inputs again", ShardPass::WeightGradient, true, false},
    {"sum weight gradients", ShardPass::WeightGradient, false, false},
    {"exchange inputs", ShardPass::Forward, true, true},
    {"exchange outputs", ShardPass::Forward, false, false},
    {"exchange gradients", ShardPass::InputGradient, true, true},
    {"exchange gradients of inputs", ShardPass::InputGradient, false, false},
    {"dispatch tokens", ShardPass::Forward, true, true},
    {"combine outputs", ShardPass::Forward, false, false},
    {"dispatch gradients", ShardPass::InputGradient, true, true},
    {"combine gradients of inputs", ShardPass::InputGradient, false, false},
}};

const RoleRecord& record_of(ShardRole role)
{
  return roles.at(static_cast<std::size_t>(role));
}

}  // namespace

std::string_view name_of(ShardRole role)
{
  return record_of(role).name;
}

ShardPass pass_of(ShardRole role)
{
  return record_of(role).pass;
}

bool is_before_pass(ShardRole role)
{
  return record_of(role).is_before;
}

bool needs_arrival(ShardRole role)
{
  return record_of(role).needs_arrival;
}

}  // namespace isobar
