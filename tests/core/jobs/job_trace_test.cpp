#include "core/jobs/job_trace.hpp"

#include "core/jobs/measured_models.hpp"
#include "core/jobs/trace_numbers.hpp"
#include "tests/support/temporary_folder.hpp"
#include "tests/support/thrown_message.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <string>
#include <utility>
#include <vector>

namespace isobar::job_trace_test {
namespace {

using testing::ElementsAre;
using testing_support::TemporaryFolder;

const std::string muri_header =
    "job_id,num_gpu,submit_time,iterations,model_name,iteration_time,resource_time_0,resource_time_1,resource_time_2\n";
const std::string helios_header = "job_id,user,vc,gpu_num,cpu_num,node_num,state,submit_time,start_time,end_time\n";
const std::string pai_header =
    "job_name,task_name,inst_num,status,start_time,end_time,plan_cpu,plan_mem,plan_gpu,gpu_type\n";

JobTrace trace_of(const std::string& text, const TraceOptions& options = {}, const std::string& name = "t.csv")
{
  const TemporaryFolder folder;
  return read_job_trace(folder.write(name, text), options);
}

/// The message of a malformed trace, without the folder of its file.
std::string fault_of(const std::string& text, const TraceOptions& options = {})
{
  const TemporaryFolder folder;
  std::filesystem::current_path(folder.path());
  folder.write("t.csv", text);
  auto message = message_of([&] { read_job_trace("t.csv", options); });
  std::filesystem::current_path("/");
  return message;
}

std::vector<std::string> left_out_of(const JobTrace& trace)
{
  std::vector<std::string> texts;
  for (const auto& [reason, rows] : trace.left_out) texts.push_back(std::to_string(rows) + " " + reason);
  return texts;
}

TEST(MuriTrace, GivesJobsByArrivalWithTheirStepsAndStartCosts)
{
  const auto trace = trace_of(muri_header + "b,8,3000,20,bert,192,0.5,167,59\r\na,1,1000,10,vgg16,107,117,68,0\r\n");
  EXPECT_EQ(trace.format, "muri");
  EXPECT_FALSE(trace.has_drawn_models);
  ASSERT_EQ(trace.jobs.size(), 2U);
  EXPECT_EQ(trace.jobs[0].name, "a");
  EXPECT_EQ(trace.jobs[0].arrival, Seconds(0));
  EXPECT_EQ(trace.jobs[0].start_cost, Seconds(7));
  EXPECT_EQ(trace.jobs[1].arrival, Seconds(2));
  EXPECT_EQ(trace.jobs[1].devices, 8U);
  EXPECT_EQ(trace.jobs[1].steps, 20);
  EXPECT_EQ(trace.jobs[1].step.alone, Seconds(0.192));
  EXPECT_THAT(trace.jobs[1].step.busy, ElementsAre(Seconds(0.0005), Seconds(0.167), Seconds(0.059)));
  EXPECT_EQ(trace.jobs[1].start_cost, Seconds(10));
}

TEST(MuriTrace, MayGiveStartCostsOfItsOwn)
{
  const std::string header = muri_header.substr(0, muri_header.size() - 1) + ",start_cost\n";
  const auto trace = trace_of(header + "a,1,0,10,mine,100,10,80,10,2500\n");
  EXPECT_EQ(trace.jobs.at(0).start_cost, Seconds(2.5));
}

TEST(HeliosTrace, DrawsAModelForEachJobAndTheStepsOfItsDuration)
{
  const std::string text = helios_header +
                           "7,u,vc1,8.0,48,1,COMPLETED,2020-04-01 15:17:10,2020-04-01 16:00:00,2020-04-01 17:00:00\n"
                           "8,u,vc1,1,6,1,FAILED,2020-04-01 15:17:00,2020-04-01 15:20:00,2020-04-01 15:21:00\n"
                           "9,u,vc1,0,6,1,COMPLETED,2020-04-01 15:17:00,2020-04-01 15:20:00,2020-04-01 15:21:00\n"
                           "10,u,vc1,4,6,1,CANCELLED,2020-04-01 15:17:00,None,None\n"
                           "11,u,vc1,4,6,1,COMPLETED,2020-04-01 15:17:00,2020-04-01 15:20:00,2020-04-01 15:20:00\n"
                           "12,u,vc1,4,6,1,RUNNING,2020-04-01 15:17:00,2020-04-01 15:20:00,None\n";
  const auto trace = trace_of(text);
  EXPECT_EQ(trace.format, "helios");
  EXPECT_TRUE(trace.has_drawn_models);
  EXPECT_THAT(left_out_of(trace),
              ElementsAre("1 never ran", "1 still running at the end of the trace", "1 no GPU", "1 ran for no time"));
  ASSERT_EQ(trace.jobs.size(), 2U);
  EXPECT_EQ(trace.jobs[0].name, "8");
  EXPECT_EQ(trace.jobs[1].arrival, Seconds(10));
  EXPECT_EQ(trace.jobs[1].devices, 8U);
  EXPECT_NEAR((trace.jobs[1].step.alone * trace.jobs[1].steps).value, 3600, trace.jobs[1].step.alone.value);
  EXPECT_EQ(trace_of(text).jobs[1].model, trace.jobs[1].model);
  std::vector<std::string> drawn;
  for (std::uint64_t seed = 0; seed < 64; ++seed) drawn.push_back(trace_of(text, {"", {}, seed}).jobs[0].model);
  for (const auto& model : measured_models()) EXPECT_THAT(drawn, testing::Contains(model));
}

TEST(HeliosTrace, MayHaveTheColumnsOfBothTracesOfAcme)
{
  const auto trace = trace_of(
      "job_id,user,node_num,gpu_num,cpu_num,mem_per_pod_GB,shared_mem_per_pod,type,state,submit_time,start_time,"
      "end_time,fail_time,stop_time,duration,queue,gpu_time\n"
      "dlc1,uf794,8,64,960,1000,100.0,Other,FAILED,2023-05-17 11:00:58+00:00,2023-05-17 11:01:08+00:00,"
      "2023-05-17 11:01:18+00:00,2023-05-17 11:01:18+00:00,,10,10.0,640.0\n"
      "dlc2,uf794,1,8,120,100,10.0,Other,COMPLETED,2023-05-17 19:00:48+08:00,2023-05-17 19:00:58+08:00,"
      "2023-05-17 20:00:58+08:00,,,3600,10.0,28800.0\n");
  EXPECT_EQ(trace.format, "helios");
  ASSERT_EQ(trace.jobs.size(), 2U);
  EXPECT_EQ(trace.jobs[0].name, "dlc2");
  EXPECT_EQ(trace.jobs[1].arrival, Seconds(10));
  EXPECT_EQ(trace.jobs[1].devices, 64U);
}

TEST(PaiTrace, TakesItsHeaderFromAFileApartAndJoinsTheTasksOfAJob)
{
  const TemporaryFolder folder;
  folder.write("tasks.header", pai_header);
  const auto file = folder.write("tasks.csv",
                                 "j1,worker,3,Terminated,1000.0,1600.0,600,29,50,MISC\n"
                                 "j1,ps,1,Terminated,900.0,1500.0,600,29,100,MISC\n"
                                 "j2,worker,1,Failed,,,600,29,100,T4\n"
                                 "j3,worker,1,Terminated,950,1000,600,29,,MISC\n"
                                 "j4,worker,2,Running,960,,600,29,100,T4\n");
  const auto trace = read_job_trace(file, {});
  EXPECT_EQ(trace.format, "pai");
  EXPECT_THAT(left_out_of(trace), ElementsAre("1 never ran", "1 no GPU", "1 still running at the end of the trace"));
  ASSERT_EQ(trace.jobs.size(), 1U);
  EXPECT_EQ(trace.jobs[0].devices, 3U);  // 1.5 rounded up, and 1
  EXPECT_NEAR((trace.jobs[0].step.alone * trace.jobs[0].steps).value, 700, 2);
}

TEST(PhillyTrace, CountsTheGpusAndTheTimeOfAttempts)
{
  const auto trace = trace_of(R"([
    {"status": "Pass", "vc": "6c71", "jobid": "a", "user": "u", "submitted_time": "2017-10-09 07:01:00",
     "attempts": [
       {"start_time": "2017-10-09 07:02:00", "end_time": "2017-10-09 07:12:00",
        "detail": [{"ip": "m1", "gpus": ["gpu0", "gpu1"]}, {"ip": "m2", "gpus": ["gpu0"]}]},
       {"start_time": "2017-10-09 08:00:00", "end_time": "2017-10-09 08:10:00", "detail": [{"ip": "m1", "gpus": ["gpu0"]}]},
       {"start_time": "2017-10-09 09:00:00", "end_time": null, "detail": []}]},
    {"status": "Killed", "vc": "6c71", "jobid": "b", "user": "u", "submitted_time": "2017-10-09 07:00:00", "attempts": []},
    {"status": "Failed", "vc": "6c71", "jobid": "c", "user": "u", "submitted_time": "None",
     "attempts": [{"start_time": "2017-10-09 07:02:00", "end_time": "2017-10-09 07:12:00", "detail": []}]},
    {"status": "Running", "vc": "6c71", "jobid": "d", "user": "u", "submitted_time": "2017-10-09 07:00:00",
     "attempts": [{"start_time": "2017-10-09 07:02:00", "end_time": null, "detail": []}]}])",
                              {}, "cluster_job_log");
  EXPECT_EQ(trace.format, "philly");
  EXPECT_THAT(left_out_of(trace),
              ElementsAre("1 never ran", "1 no time of submission", "1 still running at the end of the trace"));
  ASSERT_EQ(trace.jobs.size(), 1U);
  EXPECT_EQ(trace.jobs[0].devices, 3U);
  EXPECT_NEAR((trace.jobs[0].step.alone * trace.jobs[0].steps).value, 1200, 2);
}

TEST(JobTrace, RefusesMalformedTracesWithTheirLine)
{
  const std::pair<std::string, std::string> cases[] = {
      {"", "t.csv: is empty"},
      {"job,gpus\n",
       "t.csv:1: no known format begins like this; name it with --format muri, helios, pai, philly, and the header "
       "of a PAI trace with --header"},
      {muri_header, "t.csv: has no job to schedule"},
      {helios_header + "7,u,vc1,8,48,1,X,2020-04-01 15:17:10,None,None\n",
       "t.csv: has no job to schedule; 1 row left out: never ran"},
      {muri_header.substr(0, muri_header.rfind(',')) + "\n",
       "t.csv:1: resource_time_2: missing column; the columns are job_id, num_gpu, submit_time, iterations, "
       "model_name, "
       "iteration_time, resource_time_0, resource_time_1, resource_time_2, batch_size, duration, interval, priority, "
       "start_cost"},
      {muri_header + "a,0,0,10,bert,1,1,1,1\n", "t.csv:2: num_gpu: \"0\" is not a whole number from 1"},
      {muri_header + "a,1,-5,10,bert,1,1,1,1\n", "t.csv:2: submit_time: \"-5\" is not a number from 0 to 1e15"},
      {muri_header + "a,1,0,1.5,bert,1,1,1,1\n", "t.csv:2: iterations: \"1.5\" is not a whole number from 1"},
      {muri_header + "a,1,0,10,bert,nan,1,1,1\n", "t.csv:2: iteration_time: \"nan\" is not a number from 0 to 1e15"},
      {muri_header + "a,1,0,10,bert,0,1,1,1\n", "t.csv:2: iteration_time: is 0; a step takes time"},
      {muri_header + "a,1,0,10,bert,1,1,x,1\n", "t.csv:2: resource_time_1: \"x\" is not a number from 0 to 1e15"},
      {muri_header + "a,1,0,10,llama,1,1,1,1\n",
       "t.csv:2: model_name: \"llama\" has no known start cost; add a column start_cost, in ms, or write one of a2c, "
       "bert, "
       "dqn, gpt2, resnet18, shufflenet_v2_x1_0, vgg16, vgg19"},
      {muri_header + "a,1,0\n", "t.csv:2: row: has 3 cells; the header has 9"},
      {helios_header + "7,u,vc1,8,48,1,X,2020-13-01 15:17:10,None,None\n",
       "t.csv:2: submit_time: \"2020-13-01 15:17:10\" is not a time; write it as 2020-04-01 15:17:00"},
      {helios_header + "7,u,vc1,1.5,48,1,X,2020-04-01 15:17:10,2020-04-01 15:17:10,2020-04-01 15:18:10\n",
       "t.csv:2: gpu_num: \"1.5\" is not a whole number"},
      {helios_header + "7,u,vc1,x,48,1,X,2020-04-01 15:17:10,2020-04-01 15:17:10,2020-04-01 15:18:10\n",
       "t.csv:2: gpu_num: \"x\" is not a number from 0 to 1e15"},
      {"[1", "t.csv:1: not JSON: syntax error while parsing array - unexpected end of input; expected ']'"},
      {"{}", "t.csv:1: is not a list of jobs; Philly's trace is cluster_job_log"},
      {"[1]", "t.csv:1: [0]: is a single value; write \"key: value\" pairs"},
      {"[{\"jobid\": \"a\", \"submitted_time\": \"today\", \"attempts\": []}]",
       "t.csv:1: [0].submitted_time: \"today\" is not a time; write it as 2017-10-09 07:02:27"},
      {"[{\"jobid\": \"a\", \"submitted_time\": null, \"attempts\": [{\"detail\": [{\"gpus\": 8}]}]}]",
       "t.csv:1: [0].attempts[].detail[].gpus: is a single value; write a list"},
  };
  for (const auto& [text, message] : cases) {
    EXPECT_EQ(fault_of(text), "InputError " + message) << text;
  }
}

TEST(JobTrace, RefusesFormatsAndHeadersThatAreNone)
{
  EXPECT_EQ(fault_of("", {"csv", {}, 0}), "InputError --format: \"csv\" is none of muri, helios, pai, philly");
  EXPECT_EQ(fault_of("j,1\n", {"pai", {}, 0}), "InputError t.header: no such file");
  EXPECT_EQ(fault_of(muri_header, {"helios", {}, 0}),
            "InputError --format: t.csv is a trace of format muri, not helios");
  EXPECT_EQ(fault_of("[]", {"", "h", 0}), "InputError --header: goes with a PAI trace; t.csv has format philly");
  const TemporaryFolder folder;
  const auto header = folder.write("h", "job_name,user\n").string();
  EXPECT_EQ(fault_of("j,1\n", {"pai", header, 0}),
            "InputError " + header + ": has no column inst_num; name the header of pai_task_table with --header");
  const auto right = folder.write("right", pai_header).string();
  EXPECT_EQ(fault_of("j,1\n", {"pai", right, 0}), "InputError t.csv:1: row: has 2 cells; the header has 10");
}

TEST(JobTrace, ListsEveryFaultOfAFile)
{
  EXPECT_EQ(fault_of(muri_header + "a,0,0,10,bert,1,1,1,1\nb,1,0,x,bert,1,1,1,1\n"),
            "InputError t.csv:2: num_gpu: \"0\" is not a whole number from 1\n"
            "t.csv:3: iterations: \"x\" is not a whole number from 1");
}

TEST(TraceNumbers, ReadMomentsWithOffsets)
{
  EXPECT_EQ(moment_in("1970-01-02 00:00:01"), Seconds(86401));
  EXPECT_EQ(moment_in("1970-01-01T08:00:00+08:00"), Seconds(0));
  EXPECT_EQ(moment_in("1970-01-01 00:00:00.5Z"), Seconds(0.5));
  for (const char* text : {"", "1970", "1970-02-30 00:00:00", "1970-01-01 24:00:00", "1970-01-01 00:60:00",
                           "1970-01-01 00:00:00x", "1970-01-01 00:00:00+8"}) {
    EXPECT_EQ(moment_in(text), std::nullopt) << text;
  }
}

TEST(MeasuredModels, TakeTheNextLargerNumberOfDevicesThatWasMeasured)
{
  EXPECT_EQ(measured_step("bert", 3).alone, Seconds(0.190));
  EXPECT_EQ(measured_step("bert", 16).alone, Seconds(0.260));
  EXPECT_EQ(measured_step("bert", 1000).alone, Seconds(0.260));
  EXPECT_EQ(measured_start_cost("vgg19", 16), Seconds(10));
  EXPECT_EQ(measured_start_cost("llama", 1), std::nullopt);
  EXPECT_EQ(measured_models().size(), 8U);
}

}  // namespace
}  // namespace isobar::job_trace_test
