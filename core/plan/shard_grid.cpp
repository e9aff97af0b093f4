#include "core/plan/shard_grid.hpp"

#include "core/errors.hpp"
#include "core/names.hpp"
#include "core/text/quantity_text.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <utility>

namespace isobar {

namespace {

using GridForm = ShardGrid::Form;

constexpr NameTable<GridForm, 5> forms = {{{GridForm::OneD, "1d"},
                                           {GridForm::Sequence, "sequence"},
                                           {GridForm::TwoD, "2d"},
                                           {GridForm::TwoAndAHalfD, "2.5d"},
                                           {GridForm::ThreeD, "3d"}}};

}  // namespace

std::string_view name_of(ShardGrid::Form form)
{
  return name_in(forms, form);
}

std::optional<ShardGrid::Form> shard_form_from_name(std::string_view name)
{
  return value_in(forms, name);
}

std::vector<std::string> shard_form_names()
{
  return names_in(forms);
}

ShardGrid shard_grid(ShardGrid::Form form, const std::vector<std::uint64_t>& sides)
{
  const auto [number, order] =
      form == GridForm::TwoD ? std::pair(2U, "[rows, columns]") : std::pair(3U, "[depth, rows, columns]");
  if (sides.size() != number)
    throw InputError(fmt::format("{} sides; a {} grid has {}", sides.size(), name_of(form), order));
  const std::uint64_t rows = sides[sides.size() - 2];
  const std::uint64_t depth = form == GridForm::TwoD ? 1 : sides.front();
  if (rows != sides.back()) {
    throw InputError(
        fmt::format("{} and {}; a grid has as many of both", counted(rows, "row"), counted(sides.back(), "column")));
  }
  if (rows < 2) throw InputError(fmt::format("{} row; a grid has at least 2", rows));
  if (form == GridForm::TwoAndAHalfD && depth < 2)
    throw InputError(fmt::format("depth {}; at least 2, or write splits 2d", depth));
  if (form == GridForm::ThreeD && depth != rows) {
    throw InputError(fmt::format("depth {}, rows {}; a 3d grid has equal sides", depth, rows));
  }
  return {form, rows, depth};
}

std::vector<std::uint64_t> sides_of(const ShardGrid& grid)
{
  if (!grid.is_grid()) return {};
  if (grid.form == GridForm::TwoD) return {grid.side, grid.side};
  return {grid.depth, grid.side, grid.side};
}

std::string text_of(const ShardGrid& grid)
{
  if (grid.form == GridForm::OneD) return std::string(name_of(grid.form));
  if (grid.form == GridForm::Sequence) return fmt::format("{} of {}", name_of(grid.form), grid.side);
  return fmt::format("{} grid [{}]", name_of(grid.form), fmt::join(sides_of(grid), ", "));
}

}  // namespace isobar
