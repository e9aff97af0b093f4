#include "core/spmd/reform.hpp"

#include "core/names.hpp"

#include <algorithm>

namespace isobar::spmd {

namespace {

constexpr NameTable<ReformKind, 8> reform_names = {{{ReformKind::AllGather, "all_gather"},
                                                    {ReformKind::AllReduce, "all_reduce"},
                                                    {ReformKind::ReduceScatter, "reduce_scatter"},
                                                    {ReformKind::AllToAll, "all_to_all"},
                                                    {ReformKind::Replicate, "replicate"},
                                                    {ReformKind::Slice, "slice"},
                                                    {ReformKind::Select, "select"},
                                                    {ReformKind::Pad, "pad"}}};

}  // namespace

std::string_view name_of(ReformKind kind)
{
  return name_in(reform_names, kind);
}

const Reform* reform_between(Form from, Form to, Rules rules)
{
  if (from == to) return nullptr;
  const auto* found = std::find_if(reforms.begin(), reforms.end(), [&](const Reform& reform) {
    return reform.from == from.kind && reform.to == to.kind && (reform.is_published || rules == Rules::Corrected);
  });
  return found == reforms.end() ? nullptr : found;
}

}  // namespace isobar::spmd
