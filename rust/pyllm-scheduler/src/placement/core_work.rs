//! The work on one core: its last report, and the requests placed since. Knows neither prompts nor other cores.

use std::collections::{BTreeMap, HashMap, VecDeque};

use crate::estimates::core_load::CoreLoad;
use crate::kv_layout::GroupLayout;

/// Maximum number of ended requests that wait for load reports; it is reached only if a core sends none.
const MAX_ENDED: usize = 4096;

/// The work on one core, in units of `CoreLoad`.
pub(crate) struct CoreWork {
    pub(crate) core: u32,
    pub(crate) load: Option<CoreLoad>, // none before its first report
    pub(crate) groups: Vec<GroupLayout>,
    tenants: HashMap<String, Tenant>,
    work: f64,
    active_weight: f64,                 // of tenants with work
    placed: BTreeMap<u64, PendingWork>, // requests that `load` does not include
    num_reports: u64,
    // (number of the report that includes its blocks, request), of ended requests
    ended: VecDeque<(u64, u64)>,
}

#[derive(Default)]
struct Tenant {
    weight: f64,
    work: f64,
    num_parts: u64, // parts of its work: the load's, and each request placed since
    is_told: bool,  // by the load
}

struct PendingWork {
    tenant: String,
    weight: f64,
    work: f64,
}

impl CoreWork {
    pub(crate) fn new(core: u32, block_size: u32) -> Self {
        Self {
            core,
            load: None,
            groups: groups(&[None], block_size),
            tenants: HashMap::new(),
            work: 0.0,
            active_weight: 0.0,
            placed: BTreeMap::new(),
            num_reports: 0,
            ended: VecDeque::new(),
        }
    }

    /// Applies a core's load, which includes requests up to `last_request`. Returns the ended requests whose blocks the
    /// core has reported by now.
    pub(crate) fn take_load(&mut self, last_request: Option<u64>, load: CoreLoad, block_size: u32) -> Vec<u64> {
        let first_placed = last_request.map_or(0, |last| last.saturating_add(1));
        let placed = self.placed.split_off(&first_placed);
        self.placed.clear();
        self.tenants.clear();
        (self.work, self.active_weight) = (load.others.work, load.others.weight);
        for tenant in &load.tenants {
            self.add(&tenant.tenant, tenant.weight, tenant.work);
        }
        self.tenants.values_mut().for_each(|tenant| tenant.is_told = true);
        self.groups = groups(&load.windows, block_size);
        self.load = Some(load);
        for (request, PendingWork { tenant, weight, work }) in placed {
            self.place(request, &tenant, weight, work);
        }
        self.num_reports += 1;
        let num_told = self.ended.partition_point(|&(report, _)| report <= self.num_reports);
        self.ended.drain(..num_told).map(|(_, request)| request).collect()
    }

    /// Adds a request.
    pub(crate) fn place(&mut self, request: u64, tenant: &str, weight: f64, work: f64) {
        self.placed.insert(request, PendingWork { tenant: tenant.to_owned(), weight, work });
        let tenant_key = self.tenant_key(tenant).to_owned();
        self.add(&tenant_key, weight, work);
    }

    /// Removes the work of an ended request, unless the core's load includes it.
    pub(crate) fn end(&mut self, request: u64) {
        let Some(PendingWork { tenant, work, .. }) = self.placed.remove(&request) else { return };
        let tenant_key = self.tenant_key(&tenant).to_owned();
        self.work -= work;
        if let Some(tenant) = self.tenants.get_mut(&tenant_key) {
            tenant.work -= work;
            tenant.num_parts -= 1;
            if tenant.num_parts == 0 {
                self.active_weight -= tenant.weight;
                self.tenants.remove(&tenant_key);
            }
        }
    }

    /// Notes that a request has ended. The second report from now includes its blocks, as the next one may have been
    /// sent already. Returns the oldest request if too many wait.
    pub(crate) fn note_ended(&mut self, request: u64) -> Option<u64> {
        self.ended.push_back((self.num_reports + 2, request));
        let is_full = self.ended.len() > MAX_ENDED;
        if is_full { self.ended.pop_front().map(|(_, request)| request) } else { None }
    }

    /// Work that the core does before a new request of this tenant begins, and until it is done. Under fair queueing
    /// tenants are served by weight, so the others get their shares of the time until its own work is done; it is never
    /// later than if all other work came first.
    pub(crate) fn until_done(&self, tenant: &str, weight: f64, own: f64) -> (f64, f64) {
        if !self.shares_by_tenant() {
            return (self.work, self.work + own);
        }
        let (before, active_weight) = match self.tenants.get(tenant) {
            Some(tenant) => (tenant.work, self.active_weight),
            None => (0.0, self.active_weight + weight),
        };
        let parts = active_weight / weight;
        (self.work.min(before * parts), (self.work + own).min((before + own) * parts))
    }

    /// The weight of a tenant, if the core's last load report named it.
    pub(crate) fn weight(&self, tenant: &str) -> Option<f64> {
        let told = self.tenants.get(tenant).filter(|tenant| tenant.is_told);
        told.filter(|_| self.shares_by_tenant()).map(|tenant| tenant.weight)
    }

    /// Whether its model has states, by its last load report.
    pub(crate) fn has_states(&self) -> bool {
        self.load.as_ref().is_some_and(|load| load.has_states)
    }

    pub(crate) fn num_requests(&self) -> u64 {
        self.load.as_ref().map_or(0, |load| load.num_requests) + self.placed.len() as u64
    }

    fn tenant_key<'a>(&self, tenant: &'a str) -> &'a str {
        if self.shares_by_tenant() { tenant } else { "" }
    }

    fn shares_by_tenant(&self) -> bool {
        self.load.as_ref().is_some_and(|load| load.shares_by_tenant)
    }

    fn add(&mut self, tenant_key: &str, weight: f64, work: f64) {
        if !self.tenants.contains_key(tenant_key) {
            self.tenants.insert(tenant_key.to_owned(), Tenant { weight, ..Tenant::default() });
            self.active_weight += weight;
        }
        if let Some(tenant) = self.tenants.get_mut(tenant_key) {
            tenant.work += work;
            tenant.num_parts += 1;
        }
        self.work += work;
    }
}

fn groups(windows: &[Option<u32>], block_size: u32) -> Vec<GroupLayout> {
    windows.iter().map(|&window| GroupLayout::of_window(window, block_size)).collect()
}
