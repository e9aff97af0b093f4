#pragma once

#include "core/spmd/operator_graph.hpp"
#include "exec/device/tensors.hpp"
#include "exec/spmd/tensor_block.hpp"

#include <cstdint>
#include <string>

/// The operators of core/spmd on tensors of one device.
namespace isobar::exec {

/// What operators need to know beside the graph and their inputs.
struct OperatorSettings {
  std::uint64_t top_k = 1;         ///< of Gating: experts of each token, 1 or 2
  double dropout = 0;              ///< of Dropout: the probability, below 1
  std::uint64_t seed = 1;          ///< of its random numbers
  std::uint64_t step = 0;          ///< of its random numbers
  std::uint64_t first_sample = 0;  ///< of its random numbers: the number in the step of the graph's first sample
  std::string device = "cpu";      ///< of Positions, which read nothing
};

/// Computes the outputs of an operator from whole tensors, slices or addends, as one of its signatures has them, and
/// records it for autograd.
///
/// Sizes are those of `inputs`; any of them may be zero. The graph gives only the width of a head, the scale of the
/// embedding and the slots of an expert. So one device and any device of a strategy compute by the same code. Three
/// kinds depend on where they compute, `output`, which is the place of the first output in the whole tensor: Dropout,
/// Mask and Positions. Others do not read it.
///
/// Numbers are in the dtype of the inputs. Gating computes in float32 if that has 16 bits, as the Switch Transformer
/// does (Fedus et al., 2021, section 2.4). Positions are float64. Under autocast outputs may have another dtype.
///
/// Output gives nothing. Data and Parameter are not computed.
/// @throws InputError for Attention and CausalMask, which only the published graph has.
Tensors compute(const spmd::OperatorGraph& graph, const spmd::Operator& node, const Tensors& inputs,
                const TensorBlock& output, const OperatorSettings& settings);

}  // namespace isobar::exec
