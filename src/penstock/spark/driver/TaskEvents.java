package penstock;

import java.util.ArrayList;
import java.util.BitSet;
import java.util.HashMap;
import java.util.Iterator;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.TimeUnit;
import org.apache.spark.scheduler.*;

/**
 * Sums up what the tasks of streaming queries take, inside the JVM: a task end that went to Python would cost
 * milliseconds. Python takes lines of text from a queue. Compiled by Janino, which Spark brings along: casts stand
 * where the compiler knows no generics.
 *
 * Lines: "stage RUN BATCH", the last stage of a job has started; "job RUN BATCH TASKS RUN_MS READY_AGO_MS", a job
 * has ended; "cores", executors came or went. RUN is the id of the query's run, BATCH the number of its micro-batch.
 */
public class TaskEvents extends SparkListener {
  private static final int MOST_LINES = 100000;

  private static class Job {
    String run;
    String batch;
    int[] stages;
    int last;
    int tasks;
    long runMs;
    long readyMs = Long.MAX_VALUE;
  }

  private final LinkedBlockingQueue lines = new LinkedBlockingQueue(MOST_LINES);
  private final HashMap jobs = new HashMap();
  private final HashMap jobOfStage = new HashMap();
  private final HashMap counted = new HashMap();
  private final HashMap runOfTask = new HashMap();
  private final ConcurrentHashMap running = new ConcurrentHashMap();
  private int busy = 0;
  private volatile int most = 0;

  /** Waits for lines, at most so long; returns those there are, one after the other. */
  public String take(long waitMs) throws InterruptedException {
    ArrayList found = new ArrayList();
    Object first = lines.poll(waitMs, TimeUnit.MILLISECONDS);
    if (first == null) {
      return "";
    }
    found.add(first);
    lines.drainTo(found, 1000);
    StringBuilder text = new StringBuilder();
    for (int i = 0; i < found.size(); i++) {
      text.append((String) found.get(i)).append('\n');
    }
    return text.toString();
  }

  /** Lines "RUN TASKS": by run of a query, how many of its tasks run now. */
  public String running() {
    StringBuilder text = new StringBuilder();
    Iterator runs = running.keySet().iterator();
    while (runs.hasNext()) {
      Object run = runs.next();
      Object count = running.get(run);
      if (count != null) {
        text.append((String) run).append(' ').append(count.toString()).append('\n');
      }
    }
    return text.toString();
  }

  /** How many tasks ran at once, at most, those of other work included. */
  public int most() {
    return most;
  }

  /** A line that nobody takes for so long that the queue is full pushes out the oldest one. */
  private void say(String line) {
    while (!lines.offer(line)) {
      lines.poll();
    }
  }

  public void onJobStart(SparkListenerJobStart event) {
    if (event.properties() == null) {
      return;
    }
    String run = event.properties().getProperty("spark.jobGroup.id");
    String batch = event.properties().getProperty("streaming.sql.batchId");
    if (run == null || batch == null || event.stageIds().isEmpty()) {
      return;
    }
    Job job = new Job();
    job.run = run;
    job.batch = batch;
    job.stages = new int[event.stageIds().size()];
    for (int i = 0; i < job.stages.length; i++) {
      job.stages[i] = ((Integer) event.stageIds().apply(i)).intValue();
      job.last = Math.max(job.last, job.stages[i]);
      jobOfStage.put(Integer.valueOf(job.stages[i]), job);
    }
    jobs.put(Integer.valueOf(event.jobId()), job);
  }

  public void onStageSubmitted(SparkListenerStageSubmitted event) {
    Job job = (Job) jobOfStage.get(Integer.valueOf(event.stageInfo().stageId()));
    if (job == null) {
      return;
    }
    job.readyMs = Math.min(job.readyMs, System.currentTimeMillis());
    if (event.stageInfo().stageId() == job.last && event.stageInfo().attemptNumber() == 0) {
      say("stage " + job.run + " " + job.batch);
    }
  }

  public void onTaskStart(SparkListenerTaskStart event) {
    busy += 1;
    most = Math.max(most, busy);
    Job job = (Job) jobOfStage.get(Integer.valueOf(event.stageId()));
    if (job != null) {
      runOfTask.put(Long.valueOf(event.taskInfo().taskId()), job.run);
      count(job.run, 1);
    }
  }

  private void count(String run, int change) {
    Object before = running.get(run);
    int now = (before == null ? 0 : ((Integer) before).intValue()) + change;
    if (now > 0) {
      running.put(run, Integer.valueOf(now));
    } else {
      running.remove(run);
    }
  }

  public void onTaskEnd(SparkListenerTaskEnd event) {
    busy = Math.max(0, busy - 1);
    if (event.taskInfo() != null) {
      String run = (String) runOfTask.remove(Long.valueOf(event.taskInfo().taskId()));
      if (run != null) {
        count(run, -1);
      }
    }
    Integer stage = Integer.valueOf(event.stageId());
    Job job = (Job) jobOfStage.get(stage);
    if (job == null || event.taskInfo() == null || !event.taskInfo().successful() || event.taskMetrics() == null) {
      return;
    }
    BitSet done = (BitSet) counted.get(stage);
    if (done == null) {
      done = new BitSet();
      counted.put(stage, done);
    }
    if (done.get(event.taskInfo().index())) {
      return; // a speculative copy, or a task that ran again because its output was lost
    }
    done.set(event.taskInfo().index());
    job.tasks += 1;
    job.runMs += event.taskMetrics().executorRunTime();
  }

  public void onJobEnd(SparkListenerJobEnd event) {
    Job job = (Job) jobs.remove(Integer.valueOf(event.jobId()));
    if (job == null) {
      return;
    }
    for (int i = 0; i < job.stages.length; i++) {
      Integer stage = Integer.valueOf(job.stages[i]);
      if (jobOfStage.get(stage) == job) {
        jobOfStage.remove(stage);
        counted.remove(stage);
      }
    }
    if (job.readyMs != Long.MAX_VALUE) {
      long ago = Math.max(0L, System.currentTimeMillis() - job.readyMs);
      say("job " + job.run + " " + job.batch + " " + job.tasks + " " + job.runMs + " " + ago);
    }
  }

  public void onExecutorAdded(SparkListenerExecutorAdded event) {
    say("cores");
  }

  public void onExecutorRemoved(SparkListenerExecutorRemoved event) {
    say("cores");
  }
}
