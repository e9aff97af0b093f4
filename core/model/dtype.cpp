#include "core/model/dtype.hpp"

#include "core/errors.hpp"
#include "core/model/product_recipe.hpp"
#include "core/names.hpp"

#include <array>
#include <cstddef>

namespace isobar {

namespace {

constexpr NameTable<DType, 3> dtypes = {
    {{DType::Float32, "float32"}, {DType::BFloat16, "bf16"}, {DType::Float16, "fp16"}}};

constexpr NameTable<ProductRecipe, 5> recipes = {{{ProductRecipe::Fp8Delayed, "fp8_delayed"},
                                                  {ProductRecipe::Fp8Current, "fp8_cs"},
                                                  {ProductRecipe::Fp8Blockwise, "fp8_block"},
                                                  {ProductRecipe::Mxfp8, "mxfp8"},
                                                  {ProductRecipe::Nvfp4, "nvfp4"}}};

// Transformer Engine: one kernel casts and transposes (transformer_engine/common/cast, transpose); current scaling and
// NVFP4 find the largest number of the tensor in a pass of their own before it.
constexpr std::array<RecipeCosts, 5> costs = {{{1, 1, 1, false, false},
                                               {1, 2, 2, false, false},
                                               {1 + 4.0 / 128, 1, 1, false, false},
                                               {1 + 1.0 / 32, 1, 1, false, true},
                                               {0.5 + 1.0 / 16, 2, 2, true, true}}};

}  // namespace

std::string_view name_of(DType dtype)
{
  return name_in(dtypes, dtype);
}

std::optional<DType> dtype_from_name(std::string_view name)
{
  return value_in(dtypes, name);
}

const std::vector<std::string>& dtype_names()
{
  static const auto names = names_in(dtypes);
  return names;
}

std::string_view name_of(ProductRecipe recipe)
{
  return recipe == ProductRecipe::None ? std::string_view() : name_in(recipes, recipe);
}

std::optional<ProductRecipe> product_recipe_from_name(std::string_view name)
{
  return value_in(recipes, name);
}

std::vector<std::string> product_recipe_names()
{
  return names_in(recipes);
}

const RecipeCosts& costs_of(ProductRecipe recipe)
{
  ensure(recipe != ProductRecipe::None, "a recipe of products");
  return costs[static_cast<std::size_t>(recipe) - 1];
}

}  // namespace isobar
