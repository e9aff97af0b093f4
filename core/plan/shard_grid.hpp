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
/// rows; with `sequence` also the tokens of a part of the sequence between layers; or, in a grid, blocks of
/// activations, parameters and gradients alike. Shard number (layer of the depth x side + row) x side + column has its
/// place there.
struct ShardGrid {
  enum class Form : std::uint8_t {
    OneD,  ///< no grid (Shoeybi et al., Megatron-LM, 2019)
    /// The same, `side` shards that divide the sequence (Korthikanti et al., Reducing Activation Recomputation, 2022).
    Sequence,
    TwoD,  ///< side x side (Xu et al., An Efficient 2D Method for Training Super-Large Deep Learning Models, 2021)
    TwoAndAHalfD,  ///< depth layers of side x side, with a copy of the parameters each (Wang et al., Tesseract, 2021)
    ThreeD         ///< side x side x side (Bian et al., Maximizing Parallelism in Distributed Training, 2021)
  };

  Form form = Form::OneD;
  std::size_t side = 1;
  std::size_t depth = 1;

  /// Whether they lie in rows and columns.
  bool is_grid() const { return form > Form::Sequence; }
  /// Into how many equal parts they divide activations between layers: 1 if each has all.
  std::size_t blocks() const { return form == Form::Sequence ? side : side * side * depth; }
  /// Shards of a grid that have a block of the same parameters each: together they have all.
  std::size_t parameter_blocks() const { return form == Form::TwoAndAHalfD ? side * side : blocks(); }
  auto operator<=>(const ShardGrid&) const = default;
};

/// "1d", "sequence", "2d", "2.5d", "3d".
std::string_view name_of(ShardGrid::Form form);
std::optional<ShardGrid::Form> shard_form_from_name(std::string_view name);
std::vector<std::string> shard_form_names();

/// The grid with these sides, in the order depth, rows, columns; a 2d grid has no depth.
/// @throws InputError saying what is wrong with them.
ShardGrid shard_grid(ShardGrid::Form form, const std::vector<std::uint64_t>& sides);
/// The sides of a grid in that order; none of other forms.
std::vector<std::uint64_t> sides_of(const ShardGrid& grid);

/// "2.5d grid [4, 2, 2]"; "sequence of 4"; "1d".
std::string text_of(const ShardGrid& grid);

}  // namespace isobar
