import sys; sys.path.insert(0,'/tmp/lead_search_work')
import pickle,numpy as np
import load
D={d['name']:d for d in pickle.load(open('/tmp/lead_search_work/D.pkl','rb'))}
for p in sorted(load.b.SPACES.glob('*.json.gz')):
    n=load.load(p); o=D[n['name']]
    print(n['name'],'allowed',o['allowed'].sum(),n['allowed'].sum(),'same' if (o['allowed']==n['allowed']).all() else 'DIFF','e',float(np.abs(o['e']-n['e']).max()),'X',float(np.abs(o['X']-n['X']).max()), np.flatnonzero(np.abs(o['X']-n['X']).max(0)>0))
