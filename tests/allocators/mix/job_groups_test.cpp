#include "allocators/mix/job_groups.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace isobar::allocators::job_groups_test {
namespace {

using testing::ElementsAre;

JobStepTimes step_of(double input, double compute, double network)
{
  return {Seconds(input + compute + network), {Seconds(input), Seconds(compute), Seconds(network)}};
}

TEST(RoundTime, IsTheLargestOfTheSumsByResourceAndOfTheSteps)
{
  const JobStepTimes compute = step_of(0, 1, 0.5);
  EXPECT_EQ(shared_round_time({compute}, RoundForm::Overlap), Seconds(1.5));
  EXPECT_EQ(shared_round_time({compute, compute}, RoundForm::Overlap), Seconds(2));
  EXPECT_EQ(shared_round_time({compute, step_of(0, 0.5, 2)}, RoundForm::Overlap), Seconds(2.5));
  EXPECT_EQ(shared_round_time({step_of(2, 0, 0), step_of(0, 2, 0), step_of(0, 0, 2)}, RoundForm::Overlap), Seconds(2));
  JobStepTimes with_more = step_of(0, 1, 0);
  with_more.alone = Seconds(9);
  EXPECT_EQ(shared_round_time({with_more, compute}, RoundForm::Overlap), Seconds(9));
}

TEST(RoundTime, OfSlotsWaitsForTheSlowestJobOfEach)
{
  // b one resource ahead of a: max(1, 3) + max(2, 2) + max(3, 1); two ahead: max(1, 2) + max(2, 1) + max(3, 3).
  const JobStepTimes a = step_of(1, 2, 3);
  const JobStepTimes b = step_of(1, 3, 2);
  EXPECT_EQ(shared_round_time({a, b}, RoundForm::Slots), Seconds(7));
  EXPECT_EQ(shared_round_time({a, b}, RoundForm::Overlap), Seconds(6));
  EXPECT_EQ(shared_round_time({a}, RoundForm::Slots), Seconds(6));
  // Two jobs of one resource in a slot take their sum.
  const JobStepTimes even = step_of(1, 1, 1);
  EXPECT_EQ(shared_round_time({even, even, even}, RoundForm::Slots), Seconds(3));
  EXPECT_EQ(shared_round_time({even, even, even, even}, RoundForm::Slots), Seconds(6));
}

TEST(JobGroups, LeaveJobsAloneThatFit)
{
  const Candidate job{4, step_of(1, 1, 1), 100};
  EXPECT_THAT(group_jobs({job, job}, 8, {GroupGain::TimeSaved, RoundForm::Overlap, 4}),
              ElementsAre(ElementsAre(0), ElementsAre(1)));
}

TEST(JobGroups, PairJobsOfUnlikeResourcesAndEqualDevices)
{
  const Candidate computes{4, step_of(0, 2, 0), 100};
  const Candidate sends{4, step_of(0, 0, 2), 100};
  const Candidate computes_longer{4, step_of(0, 2, 0), 200};
  const Candidate sends_longer{4, step_of(0, 0, 2), 200};
  const Candidate wide{8, step_of(2, 0, 0), 100};
  EXPECT_THAT(group_jobs({computes, computes_longer, sends, sends_longer, wide}, 16,
                         {GroupGain::TimeSaved, RoundForm::Overlap, 2}),
              ElementsAre(ElementsAre(0, 2), ElementsAre(1, 3), ElementsAre(4)));
  // Jobs of one resource gain nothing.
  EXPECT_THAT(group_jobs({computes, computes}, 4, {GroupGain::TimeSaved, RoundForm::Overlap, 2}),
              ElementsAre(ElementsAre(0), ElementsAre(1)));
}

TEST(JobGroups, StopOnceTheGroupsFit)
{
  const Candidate computes{4, step_of(0, 2, 0), 100};
  const Candidate sends{4, step_of(0, 0, 2), 100};
  const Candidate longer{4, step_of(0, 0, 2), 500};
  const auto groups =
      group_jobs({computes, sends, computes, longer}, 12, {GroupGain::TimeSaved, RoundForm::Overlap, 2});
  EXPECT_EQ(groups.size(), 3U);
}

TEST(JobGroups, AreMatchedAgainToGroupsOfFour)
{
  const auto part = [](double size) { return Candidate{1, step_of(size, 0.1, 0.1), 10}; };
  const Candidate computes{1, step_of(0.1, 1, 0.1), 10};
  const Candidate sends{1, step_of(0.1, 0.1, 1), 10};
  const std::vector<Candidate> jobs = {part(1), computes, sends, part(0.2)};
  EXPECT_THAT(group_jobs(jobs, 1, {GroupGain::Efficiency, RoundForm::Overlap, 4}), ElementsAre(testing::SizeIs(4)));
  EXPECT_EQ(group_jobs(jobs, 1, {GroupGain::Efficiency, RoundForm::Overlap, 2}).size(), 2U);
}

}  // namespace
}  // namespace isobar::allocators::job_groups_test
