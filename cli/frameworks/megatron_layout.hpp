#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace isobar::cli {

/// The letters of Megatron-Core's layouts: embedding, decoder layer, layer of multi-token prediction, loss with the
/// head.
inline constexpr std::string_view layout_letters = "EtmL";

/// The most items of a layout, once its repetitions are written out.
inline constexpr std::size_t most_layout_items = 65'536;

/// Parses a layout of Megatron-Core, such as "Et*4|(t*4|)*14tL": the letters of each stage, written out. Stages end
/// with "|", X*n and (…)*n repeat a letter, a "|" or a group n times, and commas count for nothing. Groups hold no
/// groups. A stage may be empty.
///
/// What it takes, Megatron-Core 0.19.2 takes, as the same stages. That parser replaces texts one pattern after another,
/// and so gives a sense to some texts that this one refuses, such as (t)*2*3.
/// @throws InputError naming `place` and the column, from 1, of the first fault.
std::vector<std::string> stages_of_layout(std::string_view layout, const std::string& place);

/// Writes stages as a short layout, which stages_of_layout() reads as the same: equal letters in a row as X*n, and
/// equal stages in a row as (…|)*n. There are stages, and none is empty.
std::string layout_of(const std::vector<std::string>& stages);

}  // namespace isobar::cli
