#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace isobar {

/// In which numbers of 8 or 4 bits the products of linears are computed: forward, and both gradients. Attention,
/// embedding, head, router, norms and sums of gradients keep the workload's dtype (Transformer Engine).
enum class ProductRecipe : std::uint8_t {
  None,          ///< in the workload's dtype
  Fp8Delayed,    ///< 8 bits, a scale for each tensor from those of earlier steps
  Fp8Current,    ///< 8 bits, a scale for each tensor by itself
  Fp8Blockwise,  ///< 8 bits, scales of 1 x 128 numbers, of 128 x 128 weights (arXiv 2412.19437, section 3.3)
  Mxfp8,         ///< 8 bits, scales of 32 numbers in 8 bits (OCP Microscaling Formats 1.0)
  Nvfp4          ///< 4 bits, scales of 16 numbers in 8 bits
};
/// As `matmul_dtype` spells it: "fp8_delayed", "fp8_cs", "fp8_block", "mxfp8", "nvfp4"; "" of None.
std::string_view name_of(ProductRecipe recipe);
/// None for other names.
std::optional<ProductRecipe> product_recipe_from_name(std::string_view name);
/// All but None.
std::vector<std::string> product_recipe_names();

/// What a recipe moves and keeps.
struct RecipeCosts {
  double number = 0;        ///< bytes of a number with its part of a scale
  double reads = 0;         ///< times that a tensor in 16 bits is read until its copies are written
  double kernels = 0;       ///< for a tensor
  bool is_4bit = false;     ///< products run at the rate of 4 bits
  bool has_blocks = false;  ///< tensor cores apply scales of a few numbers
};
/// `recipe` is not None.
const RecipeCosts& costs_of(ProductRecipe recipe);

/// Copies of a tensor that products read, by rows and by columns. A linear keeps one of its input for the backward
/// pass, and both of its weights from the first micro-batch of a step on.
inline constexpr double quantized_copies = 2;

}  // namespace isobar
