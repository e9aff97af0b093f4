#include "core/spmd/reform.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

namespace isobar::spmd::reform_test {
namespace {

const std::vector<Form> forms = {full, gather(0), gather(1), reduce, replicate};

TEST(Reforms, LeadFromFormToFormByOneCollectiveEach)
{
  const auto kind = [](Form from, Form to) { return name_of(reform_between(from, to, Rules::Published)->forward); };
  EXPECT_EQ(kind(gather(1), full), "all_gather");
  EXPECT_EQ(kind(reduce, full), "all_reduce");
  EXPECT_EQ(kind(reduce, gather(0)), "reduce_scatter");
  EXPECT_EQ(kind(gather(0), gather(1)), "all_to_all");
  EXPECT_EQ(kind(full, gather(0)), "slice");
  EXPECT_EQ(kind(replicate, full), "replicate");
  EXPECT_EQ(kind(replicate, gather(0)), "replicate");
}

TEST(Reforms, OfThePublishedTableAreAllButThoseThatMakeAddends)
{
  for (const Form from : forms) {
    for (const Form to : forms) {
      const bool is_legal = from != to && to != reduce && to != replicate;
      EXPECT_EQ(reform_between(from, to, Rules::Published) != nullptr, is_legal) << name_of(from) << name_of(to);
    }
  }
}

TEST(Reforms, MakeAddendsOfWholeTensorsAndSlicesForFreeByOurRules)
{
  EXPECT_EQ(reform_between(full, reduce, Rules::Corrected)->forward, ReformKind::Select);
  EXPECT_EQ(reform_between(gather(1), reduce, Rules::Corrected)->forward, ReformKind::Pad);
  EXPECT_EQ(reform_between(replicate, reduce, Rules::Corrected), nullptr);
  EXPECT_EQ(reform_between(full, replicate, Rules::Corrected), nullptr);
}

/// The kind of reform from a kind of form to another that a gradient needs: of the whole gradient, each device has the
/// gradient of its addend already.
TEST(Reforms, HaveTheConjugateThatTakesTheGradientBack)
{
  for (const Form from : forms) {
    for (const Form to : forms) {
      const Reform* reform = reform_between(from, to, Rules::Corrected);
      if (reform == nullptr || from == replicate) continue;
      const Form gradient = gradient_form(to);
      const Form wanted = gradient_form(from);
      const Reform* back = reform_between(gradient, wanted, Rules::Corrected);
      if (gradient == wanted) {
        ADD_FAILURE() << "a reform whose gradient needs none";
      } else {
        ASSERT_NE(back, nullptr) << name_of(from) << " -> " << name_of(to);
        EXPECT_EQ(back->forward, reform->backward) << name_of(from) << " -> " << name_of(to);
      }
    }
  }
}

TEST(Reforms, OfReplicatedParametersAddUpTheirGradients)
{
  EXPECT_EQ(reform_between(replicate, full, Rules::Published)->backward, ReformKind::AllReduce);
  EXPECT_EQ(reform_between(replicate, gather(0), Rules::Published)->backward, ReformKind::AllReduce);
}

TEST(Forms, HaveTheNamesOfPlans)
{
  EXPECT_EQ(name_of(full), "full");
  EXPECT_EQ(name_of(gather(2)), "gather2");
  EXPECT_EQ(name_of(reduce), "reduce");
  EXPECT_EQ(name_of(replicate), "replicate");
}

}  // namespace
}  // namespace isobar::spmd::reform_test
