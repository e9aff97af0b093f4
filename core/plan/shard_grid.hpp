#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace isobar {

/// How the shards of a replica lie, and so what each has of the matrices of a layer (docs/costs.md): of all, columns or
/// rows; or, in a grid, blocks of activations, parameters and gradients alike. Shard number
/// (layer of the depth x side + row) x side + column has its place there.
struct ShardGrid {
  enum class Form : std::uint8_t {
    OneD,  ///< no grid (Shoeybi et al., Megatron-LM, 2019)
    TwoD,  ///< side x side (Xu et al., An Efficient 2D Method for Training Super-Large Deep Learning Models, 2021)
    TwoAndAHalfD,  ///< depth layers of side x side, with a copy of the parameters each (Wang et al., Tesseract, 2021)
    ThreeD         ///< side x side x side (Bian et al., Maximizing Parallelism in Distributed Training, 2021)
  };

  Form form = Form::OneD;
  std::size_t side = 1;
  std::size_t depth = 1;

  bool is_grid() const { return form != Form::OneD; }
  std::size_t shards() const { return side * side * depth; }
  /// Shards that have a block of the same parameters each: together they have all.
  std::size_t parameter_blocks() const { return form == Form::ThreeD ? shards() : side * side; }
  auto operator<=>(const ShardGrid&) const = default;
};

/// "1d", "2d", "2.5d", "3d".
std::string_view name_of(ShardGrid::Form form);
std::optional<ShardGrid::Form> shard_form_from_name(std::string_view name);
std::vector<std::string> shard_form_names();

/// The grid with these sides, in the order depth, rows, columns; a 2d grid has no depth.
/// @throws InputError saying what is wrong with them.
ShardGrid shard_grid(ShardGrid::Form form, const std::vector<std::uint64_t>& sides);
/// The sides of a grid in that order; none of 1d.
std::vector<std::uint64_t> sides_of(const ShardGrid& grid);

/// "2.5d grid [4, 2, 2]"; "1d".
std::string text_of(const ShardGrid& grid);

}  // namespace isobar
